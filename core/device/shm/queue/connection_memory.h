// The segments of a connection, as one of its two queue pairs holds them.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "core/verbs/rc_extensions.h"

namespace ringsock::soft {

/// The memory of a queue pair's own inbox, and of its peer's once that is known. Threads: one at a time;
/// forget_peers(): any.
class ConnectionMemory {
 public:
  /// Makes an inbox in `room` if it fits there, otherwise in a memfd of its own. With no `room` there is room for the
  /// peer's inbox in it. Errors: ENOMEM; those of SegmentCache::make().
  static Result<ConnectionMemory> make(const ibv_qp_init_attr& attr, ArenaBytes arena, const SpareRoom* room,
                                       std::optional<SegmentPeer> peer);

  [[nodiscard]] InboxView own_inbox() const { return {*own_, layout_}; }
  /// Returns the bytes at the end of our arena that are quiet memory (ArenaBytes).
  [[nodiscard]] std::uint64_t quiet_bytes() const { return quiet_bytes_; }
  /// Fills in what the peer needs to find the inbox.
  void describe(QueuePairOffer& out) const;
  /// Returns the memfd that describe() names, null when there is none, or after take_peers().
  [[nodiscard]] std::shared_ptr<const UniqueFd> memfd() const { return memfd_; }

  /// Checks the layout of the peer's inbox.
  /// @param segment  the peer's; null: the inbox is in the spare room of ours
  /// @return EPROTO when it does not fit
  [[nodiscard]] Status check_peers(const InboxLayout& layout, const MappedSegment* segment) const;
  /// Keeps the segment of the peer's inbox, which was checked, and gives our memfd up: the peer has a copy of the
  /// descriptor, or needs none.
  InboxView take_peers(const InboxLayout& layout, std::shared_ptr<MappedSegment> segment);

  /// verbs::RcExtensions::sparse_memory(), keep_sparse().
  [[nodiscard]] std::size_t sparse_memory(const std::byte* start) const { return own_->sparse_memory(start); }
  bool keep_sparse(const verbs::SparseMemory& own, const verbs::SparseMemory& peers, bool is_read);

  /// No segment is kept for another connection with this peer.
  void forget_peers();
  [[nodiscard]] MappedSegment& own_segment() const { return *own_; }
  /// verbs::ConnectionId::abandon().
  void abandon();

 private:
  ConnectionMemory() = default;

  std::shared_ptr<MappedSegment> own_;
  std::shared_ptr<MappedSegment> peers_;  ///< null: in ours, or not known
  std::shared_ptr<const UniqueFd> memfd_;
  MemoryName name_{};             ///< of memfd_
  std::uint32_t part_flags_ = 0;  ///< of the offer: kOfferPartShift, kOfferPartsShift
  std::optional<PeerProcess> kept_for_;
  InboxLayout layout_{};
  InboxLayout spare_{};
  std::uint64_t quiet_bytes_ = 0;
};

}  // namespace ringsock::soft
