// Send work requests as frames for the ring, each preceded by a header that says what the kernel has to do.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/packet/ring/frame_ring.h"
#include "core/wire/frame_layout.h"

namespace ringsock::soft {

/// Some frames and the requests that they come from. Points into the requests' memory.
class OutgoingBatch {
 public:
  static constexpr std::size_t kCapacity = 32;
  static constexpr std::size_t kMaxParts = 18;

  OutgoingBatch() {}  // does not initialise the arrays: a single frame should not pay for 32
  OutgoingBatch(const OutgoingBatch&) = delete;
  OutgoingBatch& operator=(const OutgoingBatch&) = delete;

  [[nodiscard]] bool full() const { return size_ == kCapacity; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  void clear() { size_ = 0; }
  /// Adds a request. Returns 0, or EINVAL when the request contradicts its headers.
  int add(ibv_send_wr& wr);

  [[nodiscard]] std::span<const OutgoingFrame> frames() const { return {frames_.data(), size_}; }
  [[nodiscard]] ibv_send_wr& request(std::size_t i) const { return *requests_[i]; }
  [[nodiscard]] std::size_t bytes(std::size_t i) const { return bytes_[i]; }

 private:
  /// Frames up to this size are sent in one piece behind the offload header.
  static constexpr std::size_t kHeadBytes = 256;
  struct Slot {
    std::array<std::byte, sizeof(virtio_net_hdr) + kHeadBytes> head;
    std::array<iovec, kMaxParts> parts;
  };

  static std::size_t collect(const ibv_send_wr& wr, std::span<std::byte> head, std::size_t& head_bytes);
  static int offload(const ibv_send_wr& wr, std::span<std::byte> headers, std::size_t bytes, virtio_net_hdr& out);
  std::size_t list_parts(const ibv_send_wr& wr, Slot& slot, std::size_t head_bytes, std::size_t bytes);

  std::size_t size_ = 0;
  union {
    std::array<OutgoingFrame, kCapacity> frames_;
  };
  std::array<ibv_send_wr*, kCapacity> requests_;
  std::array<std::size_t, kCapacity> bytes_;
  std::array<Slot, kCapacity> slots_;
};

}  // namespace ringsock::soft
