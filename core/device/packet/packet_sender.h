// Sending through a ring: work requests, and datagrams without one.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/packet/packet_completion_queue.h"
#include "core/device/packet/ring/frame_ring.h"
#include "core/verbs/device.h"
#include "core/wire/frame_layout.h"

namespace ringsock::soft {

class KeyTable;
class PacketDevice;
class OutgoingBatch;

inline constexpr std::uint32_t kMaxPacketSge = 16;
/// The longest packet that is sent for segmentation: headers and payload.
inline constexpr std::uint32_t kMaxTsoBytes = 65535;

/// Room for the headers of a datagram to send. There is further room in front of them and behind them for the queue
/// pair, so that a small datagram is sent in one piece.
class DatagramRoom {
 public:
  DatagramRoom() = default;  // does not initialise the bytes, which headers overwrite
  [[nodiscard]] std::span<std::byte, wire::kMaxHeaderBytes> headers() {
    return std::span(bytes_).subspan<kOffloadBytes, wire::kMaxHeaderBytes>();
  }

 private:
  friend class PacketSender;
  static constexpr std::size_t kOffloadBytes = sizeof(virtio_net_hdr);
  static constexpr std::size_t kSmallPayload = 256;
  std::array<std::byte, kOffloadBytes + wire::kMaxHeaderBytes + kSmallPayload> bytes_;
};

/// Sends at once and completes at once; the kernel's socket is the queue. Threads: any, because threads may share the
/// kernel's socket.
class PacketSender {
 public:
  PacketSender(PacketDevice& device, const ibv_qp& queue_pair, const ibv_qp_init_attr& attr, FrameRing& ring);

  /// PacketQueuePair::send_datagram(), in state RTS.
  int send_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload);
  /// PacketQueuePair::rehearse_datagram(), in state RTS.
  int rehearse_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) const;
  struct Outcome {
    int error = 0;  ///< errno value: `next` is the request that has failed
    ibv_send_wr* next = nullptr;
    bool is_denied = false;  ///< `next` must not be sent, because it names memory that is not registered
  };
  /// Sends requests from the start of the list, as many as one batch holds.
  Outcome send_some(ibv_send_wr* wr);
  void complete(const ibv_send_wr& wr, ibv_wc_status status);
  void flush(const ibv_send_wr* wr);
  void add_to(verbs::PacketCounters& counters) const;

 private:
  /// Returns what is done with a request: 0: send it, or an errno value: fail.
  [[nodiscard]] int check(const ibv_send_wr& wr) const;
  [[nodiscard]] bool may_read(const ibv_send_wr& wr) const;
  /// Sends the frames in the batch. Returns 0 or an errno value; then `failed` is the request that has failed.
  int send_batch(OutgoingBatch& batch, ibv_send_wr*& failed);
  /// Returns whether an IBV_WR_TSO contains several datagrams that the kernel cannot separate.
  [[nodiscard]] bool must_segment(const ibv_send_wr& wr) const;
  /// Sends such datagrams. Returns 0 or an errno value.
  int send_segments(const ibv_send_wr& wr);
  int failure(int code);
  int send_in_parts(const iovec& head, std::span<const iovec> payload);
  void count(std::size_t packets, std::size_t bytes);
  void finish(const ibv_send_wr& wr, std::size_t bytes);

  PacketDevice& device_;
  const ibv_qp& queue_pair_;
  FrameRing& ring_;
  const KeyTable& keys_;
  const std::uint32_t max_sge_;
  const bool signal_all_;
  std::atomic<std::uint64_t> packets_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ringsock::soft
