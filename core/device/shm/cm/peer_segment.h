// The segment that the peer of a connection has made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/link/strangers.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/queue/rc_wiring.h"

namespace ringsock::soft {

/// Maps the peer's memory once it is known how much of it this side needs, and charges what exceeds that to the budget
/// of the peer's user for as long as this exists. Threads: one at a time.
class PeerSegment {
 public:
  /// The memory that a queue pair of ours needs on both sides together without quiet memory, and the latter on ours.
  struct OwnNeeds {
    std::uint64_t bytes;
    std::uint64_t quiet = 0;
  };

  PeerSegment() = default;
  /// The memory of a connect request: a mapping that was kept, or a memfd.
  PeerSegment(std::shared_ptr<MappedSegment> kept, UniqueFd memfd)
      : segment_(std::move(kept)), memfd_(std::move(memfd)) {}

  PeerSegment(PeerSegment&&) = default;
  PeerSegment& operator=(PeerSegment&& other) noexcept {
    segment_ = std::move(other.segment_);
    memfd_ = std::move(other.memfd_);
    charge_.reset();
    if (other.charge_) charge_.emplace(*std::move(other.charge_));
    return *this;
  }
  ~PeerSegment() = default;

  /// Makes that memory usable. Errors: those of map(). Does nothing but charge it when it is mapped already.
  Status take(const PeerIdentity& peer, const QueuePairOffer& offer, OwnNeeds own);
  /// Maps the memfd of `peer`.
  /// @param offer  the peer's
  /// @param maker  as for SegmentCache::map()
  /// @return ENOMEM more than the limits; those of check_peer_memfd() and SegmentCache::map()
  Status map(UniqueFd memfd, const PeerIdentity& peer, const QueuePairOffer& offer, OwnNeeds own,
             std::optional<PeerProcess> maker);
  /// Returns the mapping, null: none.
  [[nodiscard]] const std::shared_ptr<MappedSegment>& mapping() const { return segment_; }
  /// Leaves the mapping to the queue pair.
  std::shared_ptr<MappedSegment> release() { return std::exchange(segment_, nullptr); }

 private:
  Status charge(const PeerIdentity& peer, std::uint64_t bytes, std::uint64_t own_bytes);

  std::shared_ptr<MappedSegment> segment_;
  UniqueFd memfd_;  ///< before take(): the source of segment_
  std::optional<UserCharge> charge_;
};

}  // namespace ringsock::soft
