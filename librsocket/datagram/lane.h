// The UD queue pair of a datagram rsocket, with the memory of its receives.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"
#include "core/verbs/pages.h"
#include "core/wire/rs_datagram.h"
#include "librsocket/datagram/slot_sends.h"

namespace ringsock::rs {

/// The datagrams that a lane has room for.
struct LaneSizes {
  std::uint32_t receives = 0;  ///< that may wait to be read
  std::uint32_t sends = 0;     ///< that may be under way
};

/// Sends datagrams, and receives them into slots, which the caller gives back. The embedded device takes a whole slot
/// inline, and says at once what becomes of it; other devices send from SlotSends. Threads: the caller's lock.
class Lane {
 public:
  /// Errors: EOPNOTSUPP a device without such datagrams; ENOMEM; those of the verbs.
  static Result<std::unique_ptr<Lane>> open(verbs::Device& device, const verbs::UdPort& port, const LaneSizes& sizes);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  [[nodiscard]] verbs::Device& device() const { return device_; }
  [[nodiscard]] const verbs::UdPort& port() const { return port_; }
  [[nodiscard]] bool is_embedded() const { return device_.traits().is_embedded; }
  [[nodiscard]] std::uint32_t qp_number() const { return qp_->qp_num; }
  /// Returns what rendezvous packets say of the queue pair.
  [[nodiscard]] wire::RsUdpNote note() const;
  /// Returns whether a number that came with `told` is one of the queue pairs that this lane reaches. Numbers of
  /// InfiniBand links and of the embedded device look alike.
  [[nodiscard]] bool understands(const wire::RsUdpNote& told) const {
    return told.is_on_ethernet == port_.is_ethernet && !(is_embedded() && told.mtu != 0);
  }
  /// Returns the longest datagram, header included.
  [[nodiscard]] std::size_t most_bytes() const { return most_bytes_; }
  /// Returns whether the queue pair has failed: then it neither sends nor receives.
  [[nodiscard]] bool has_failed() const { return has_failed_ || (slot_sends_ && slot_sends_->has_failed()); }
  /// Makes an address handle. It may be given back while datagrams are under way with it.
  Result<verbs::Ah> make_handle(ibv_ah_attr& path) { return device_.create_ah(*pd_, path); }
  void retire(verbs::Ah handle);

  enum class Outcome {
    sent,
    nobody,  ///< no queue pair has the number any more
    full,    ///< the receive buffer of that queue pair
  };
  /// Sends header and parts as one datagram, at most most_bytes(). Errors: EAGAIN too many are under way; EIO the
  /// device refuses it.
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

  /// Returns whether so many datagrams can be sent now, or more than the lane has slots for.
  bool has_room(std::size_t count = 1) { return !slot_sends_ || slot_sends_->has_room(count); }
  /// Returns the pieces, at most `most`, in which a datagram may leave; 1 on the embedded device.
  [[nodiscard]] std::size_t most_pieces(std::size_t most) const {
    return slot_sends_ ? std::min(most, slot_sends_->slots()) : 1;
  }
  /// The sends of a lane on a real device, otherwise null.
  [[nodiscard]] SlotSends* slot_sends() { return slot_sends_ ? &*slot_sends_ : nullptr; }
  /// Waits until what was sent has left, for at most some milliseconds.
  void finish_sends();

  /// Returns the descriptor that becomes readable when a datagram comes.
  /// @param for_room  also when one has been sent
  int arm(bool for_room);
  void woken();
  /// Opens the way past the kernel to a queue pair. Returns whether it is new: its owner must be told to look closely.
  bool open_ring(std::uint32_t qp_number) { return device_.ud().open_ring(*qp_, qp_number); }
  void look_closely() { device_.ud().look_closely(*qp_); }
  /// After a fork: another process has the port, too.
  void note_heirs() { device_.ud().note_heirs(*qp_); }
  /// Returns whether a queue pair of the same device, of another process, is there for sure.
  [[nodiscard]] bool is_there(std::uint32_t number) { return device_.ud().is_there(*qp_, number); }
  /// In a forked child: leaves the queue pair to the parent. Then it can only be destroyed.
  void leave_to_parent() { device_.ud().leave_to_parent(*qp_); }

 private:
  static constexpr std::size_t kGrhBytes = sizeof(ibv_grh);
  static constexpr std::size_t kMostParts = 16;
  static constexpr std::uint32_t kInlineBytes = 256;  ///< of a real device, if it grants them
  /// Receives that a real device has beside those that may wait: what they take in is dropped and counted.
  static constexpr std::uint32_t kSpareReceives = 64;

  Lane(verbs::Device& device, const verbs::UdPort& port);
  [[nodiscard]] std::uint32_t receives_of(const LaneSizes& sizes) const;
  Status make_memory(const LaneSizes& sizes);
  Status make_queues(const LaneSizes& sizes);
  Status make_queue_pair(const LaneSizes& sizes);
  Status start(std::uint32_t receives);
  Status go_to(ibv_qp_state state, int mask);
  Status post(std::uint32_t slot);
  Result<Outcome> send_inline(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header,
                              std::span<const iovec> parts);
  Result<Outcome> outcome();

  verbs::Device& device_;
  const verbs::UdPort port_;
  const std::size_t most_bytes_;
  const std::size_t slot_bytes_;  ///< GRH and datagram, whole cache lines
  verbs::Pages memory_;           ///< of receives, then of sends
  verbs::Pd pd_;
  verbs::CompChannel channel_;
  verbs::Cq receive_cq_;
  verbs::Cq send_cq_;
  verbs::Mr mr_;
  std::optional<SlotSends> slot_sends_;  ///< destroyed after the queue pair
  verbs::Qp qp_;
  std::uint32_t posted_ = 0;
  std::uint32_t most_parts_ = 0;  ///< of one datagram, as the device has granted
  bool has_failed_ = false;
  std::array<std::byte, wire::kRsSlotBytes> scratch_;
  std::array<ibv_sge, kMostParts> sges_{};
};

}  // namespace ringsock::rs
