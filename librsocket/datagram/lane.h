// The UD queue pair of a datagram rsocket, with the memory of its receives.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"
#include "core/wire/rs_datagram.h"

namespace ringsock::rs {

/// Sends datagrams inline, and receives them into slots, which the caller gives back. The device must take a whole slot
/// inline. Threads: the caller's lock.
class Lane {
 public:
  /// @param slots  datagrams that may wait to be read
  /// Errors: EOPNOTSUPP a device without such datagrams; those of the verbs.
  static Result<std::unique_ptr<Lane>> open(verbs::Device& device, std::uint32_t slots);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  [[nodiscard]] verbs::Device& device() const { return device_; }
  [[nodiscard]] std::uint32_t qp_number() const { return qp_->qp_num; }
  Result<verbs::Ah> make_handle(const SocketAddress& destination);

  enum class Outcome {
    sent,
    nobody,  ///< no queue pair has the number any more
    full,    ///< the receive buffer of that queue pair
  };
  /// Sends header and parts as one datagram, at most wire::kRsSlotBytes. Errors: EIO the device refuses it.
  Result<Outcome> send(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header,
                       std::span<const iovec> parts);

  struct Came {
    std::uint32_t slot;
    std::uint32_t from;                ///< the sender's queue pair
    std::span<const std::byte> bytes;  ///< behind the GRH, in the slot
  };
  /// Returns how many of `out` were filled. Takes nothing while all slots are with the caller.
  std::size_t poll(std::span<Came> out);
  /// Posts the slot for another datagram.
  void give_back(std::uint32_t slot);

  /// Returns the descriptor that becomes readable when a datagram comes.
  int arm();
  void woken();
  /// Opens the way past the kernel to a queue pair. Returns whether it is new: its owner must be told to look closely.
  bool open_ring(std::uint32_t qp_number) { return device_.ud().open_ring(*qp_, qp_number); }
  void look_closely() { device_.ud().look_closely(*qp_); }
  /// After a fork: another process has the port, too.
  void note_heirs() { device_.ud().note_heirs(*qp_); }
  /// In a forked child: leaves the queue pair to the parent. Then it can only be destroyed.
  void leave_to_parent() { device_.ud().leave_to_parent(*qp_); }

 private:
  static constexpr std::size_t kGrhBytes = sizeof(ibv_grh);
  static constexpr std::size_t kSlotBytes = 2112;  ///< GRH and datagram, whole cache lines
  static_assert(kSlotBytes >= kGrhBytes + wire::kRsSlotBytes && kSlotBytes % 64 == 0);
  static constexpr std::size_t kMostParts = 16;

  explicit Lane(verbs::Device& device, std::uint32_t slots) : device_(device), memory_(slots * kSlotBytes) {}
  Status make_queues(std::uint32_t slots);
  Status make_queue_pair(std::uint32_t slots);
  Status go_to(ibv_qp_state state, int mask);
  Status post(std::uint32_t slot);
  Result<Outcome> outcome();

  verbs::Device& device_;
  std::vector<std::byte> memory_;
  verbs::Pd pd_;
  verbs::CompChannel channel_;
  verbs::Cq receive_cq_;
  verbs::Cq send_cq_;
  verbs::Mr mr_;
  verbs::Qp qp_;
  std::uint32_t posted_ = 0;
  std::uint32_t most_parts_ = 0;  ///< of one datagram, as the device has granted
  std::array<std::byte, wire::kRsSlotBytes> scratch_;
  std::array<ibv_sge, kMostParts> sges_{};
};

}  // namespace ringsock::rs
