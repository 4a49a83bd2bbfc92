// The interface by which the connection manager joins two RC queue pairs.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/common/device_context.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/memory/segment_batch.h"

namespace ringsock::soft {

/// The data of a side in the request or reply, beside the application's private data.
struct QueuePairOffer {
  InboxLayout inbox;  ///< the inbox of the sender
  InboxLayout spare;  ///< request only: room in the same memfd for the other side's inbox (bytes 0: none)
  std::uint32_t qp_num;
  std::uint32_t flags;  ///< kOffer...
  MemoryName memory;    ///< with kOfferHasMemfd
};
static_assert(sizeof(QueuePairOffer) == 96);
inline constexpr std::uint32_t kOfferHasMemfd = 1
                                                << 0;  ///< the inbox is in a memfd of the sender (always in a request)
inline constexpr std::uint32_t kOfferNeedsFullFence = 1 << 1;  ///< the sender could not register for membarrier(2)
inline constexpr std::uint32_t kOfferUsesSrq = 1 << 2;         ///< receives come from a shared receive queue
inline constexpr std::uint32_t kOfferKeptSegment = 1 << 3;  ///< the memfd served an earlier connection (SegmentCache)
/// Eight bits of the flags: the memfd has several segments of one size (segment_batch.h), and the sender's inbox and
/// the spare room are in one of these. All offsets are from the start of that segment. Only between processes of one
/// user.
inline constexpr unsigned kOfferPartShift = 4;
inline constexpr unsigned kOfferPartsShift = 8;
inline constexpr std::uint32_t kOfferPartMask = 15;
constexpr std::uint32_t part_of(const QueuePairOffer& offer) { return offer.flags >> kOfferPartShift & kOfferPartMask; }
constexpr std::uint32_t parts_of(const QueuePairOffer& offer) {
  return (offer.flags >> kOfferPartsShift & kOfferPartMask) + 1;
}
static_assert(kMostParts == kOfferPartMask + 1);
/// The upper half of the flags: pages of quiet memory (ArenaBytes) at the end of `inbox`. Untrusted.
inline constexpr unsigned kOfferQuietShift = 16;
inline constexpr std::uint64_t kMaxOfferedQuiet = 0xffff * kPageBytes;
constexpr std::uint64_t quiet_bytes_of(const QueuePairOffer& offer) {
  return std::uint64_t{offer.flags >> kOfferQuietShift} * kPageBytes;
}
/// In a segment, at most, of another user: more is charged as any memory is.
inline constexpr std::uint64_t kMaxQuietBytes = std::uint64_t{16} << 20;

/// The size of an arena, and how much of its end is quiet: work requests of the peer do not reach it
/// (verbs::ReceiveBytes).
struct ArenaBytes {
  ArenaBytes(std::uint64_t bytes, std::uint64_t quiet_tail = 0) : all(bytes), quiet(quiet_tail) {}
  std::uint64_t all;
  std::uint64_t quiet;
};

/// The interface of an RC queue pair for the connection manager, from wiring_of(qp).
class RcWiring {
 public:
  virtual ~RcWiring() = default;
  /// offer() returns the offer to send, memfd() the memfd that it names, or nullptr when the inbox is in the
  /// requester's memfd. Valid until attach().
  virtual QueuePairOffer offer() = 0;
  virtual std::shared_ptr<const UniqueFd> offer_memfd() = 0;
  /// The process at the other end, as SO_PEERCRED names it.
  struct Peer {
    PeerProcess process;  ///< on the active side the one that called listen(2)
    pid_t memory_of;      ///< whose memory may be accessed directly (PeerSpace); 0: none
  };
  /// Accepts the peer's offer and the link, and moves the queue pair INIT -> RTR -> RTS. Errors: EPROTO when the offer
  /// does not fit the memfd, ENOMEM, EINVAL state.
  virtual Status attach(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment,
                        std::shared_ptr<Link> link, Peer peer, std::uint8_t rnr_retry_count) = 0;
  /// The segment that this side has made, or has room in.
  [[nodiscard]] virtual MappedSegment& own_segment() = 0;
  /// ConnectionId::abandon(): replaces the memory shared with the peer by private memory.
  virtual void abandon() = 0;
  /// Makes this process the one that uses the connection: the peer's accesses to registered memory then go to this
  /// process.
  virtual void take_over() = 0;
  /// Called when another process uses the connection. On return the peer does not access this process's memory and
  /// cannot start to.
  virtual void withdraw_memory() = 0;
  /// ConnectionId::has_waiting().
  [[nodiscard]] virtual bool has_waiting(bool (*is_wanted)(std::uint32_t)) const = 0;
};

RcWiring& wiring_of(ibv_qp& qp);

/// Makes an RC queue pair in state INIT with such an arena. `from_peer` is the requester's segment with its
/// spare room (nullptr on the active side), which is used for the inbox if it is large enough; otherwise a memfd is
/// made. `peer` is the process that it will be connected to, if known: a segment kept for it may be used.
struct SpareRoom {
  std::shared_ptr<MappedSegment> segment;
  InboxLayout inbox;
};
struct RcQueuePair {
  ibv_qp* qp;
  void* arena;
  ibv_mr* arena_mr;  ///< nullptr when it has no bytes
};
/// Returns the size of two inboxes of such a queue pair, which a peer of the same shape would offer, without quiet
/// memory.
std::uint64_t own_segment_bytes(const ibv_qp_init_attr& attr, ArenaBytes arena);
Result<RcQueuePair> create_rc_queue_pair(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr, ArenaBytes arena,
                                         const SpareRoom* from_peer, std::optional<SegmentPeer> peer = std::nullopt);

}  // namespace ringsock::soft
