// How the connection manager joins two RC queue pairs: what each offers, and how the other takes it.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/link.h"

namespace ringsock::soft {

inline constexpr pid_t kAnyProcess = 0;

/// A process, or kAnyProcess of a user, that segments may be kept for (segment_cache.h), as the kernel says
/// (SO_PEERCRED).
struct PeerProcess {
  pid_t pid;
  uid_t uid;
  bool operator==(const PeerProcess&) const = default;
};

/// Where one queue pair's inbox lies in a connection's memfd: its control lines, table of remotely accessible memory,
/// ring of entries, payload ring, and arena (the memory the peer may RDMA-write). Travels in the CM request and reply
/// in host byte order (both ends are on one host) and is checked by check_inbox() before use, then never read again.
struct InboxLayout {
  std::uint64_t offset;         ///< bytes from the start of the memfd, page aligned
  std::uint64_t bytes;          ///< everything, arena included
  std::uint64_t arena_bytes;    ///< at the end of the inbox, page aligned; 0: none
  std::uint32_t ring_entries;   ///< power of two
  std::uint32_t payload_bytes;  ///< power of two
};
static_assert(sizeof(InboxLayout) == 32);

/// Which memfd a side means: packets name it and carry no descriptor (ARCHITECTURE.md, "No descriptor unasked").
/// Untrusted: whatever is found by it is compared with it.
struct MemoryName {
  std::uint64_t device;
  std::uint64_t inode;
  std::uint32_t descriptor;  ///< its number in the sender's process
  std::uint32_t reserved;
};
static_assert(sizeof(MemoryName) == 24);

/// What a side tells the other in the request or reply, beside the application's private data.
struct QueuePairOffer {
  InboxLayout inbox;  ///< where the sender receives
  InboxLayout spare;  ///< request only: room in the same memfd for the other side's inbox (bytes 0: none)
  std::uint32_t qp_num;
  std::uint32_t flags;  ///< kOffer...
  MemoryName memory;    ///< with kOfferHasMemfd
};
static_assert(sizeof(QueuePairOffer) == 96);
inline constexpr std::uint32_t kOfferHasMemfd = 1 << 0;        ///< a memfd of the sender's (always in a request)
inline constexpr std::uint32_t kOfferNeedsFullFence = 1 << 1;  ///< the sender could not register for membarrier(2)
inline constexpr std::uint32_t kOfferUsesSrq = 1 << 2;         ///< receives come from a shared receive queue
inline constexpr std::uint32_t kOfferKeptSegment = 1 << 3;  ///< the memfd served an earlier connection (SegmentCache)

/// A memfd made by somebody else, checked: sealed against shrinking, growing and unsealing, ordinary pages, mapped
/// whole, shared. No peer can take pages from under the mapping, so no access inside [base, base + bytes) faults.
class MappedSegment;

/// Whether that is a memfd as above, with that name. What is none of shmem is touched by one fcntl(2) only, which does
/// not block. Its size in bytes. Error: EPROTO not sealed, hugetlb pages, wrong size, another one.
Result<std::uint64_t> check_peer_memfd(int memfd, const MemoryName& name);
/// Checks and maps a peer's memfd, when it has at most `limit` bytes. Errors: EPROTO as above; EFBIG; ENOMEM.
Result<std::shared_ptr<MappedSegment>> map_peer_segment(UniqueFd memfd, const MemoryName& name, std::uint64_t limit);

/// The side of an RC queue pair that the connection manager sees. Get it from wiring_of(qp).
class RcWiring {
 public:
  virtual ~RcWiring() = default;
  /// What to send, and the memfd that it names; nullptr when the inbox lies in the requester's memfd. Until attach().
  virtual QueuePairOffer offer() = 0;
  virtual std::shared_ptr<const UniqueFd> offer_memfd() = 0;
  /// Takes the peer's offer and the link, and moves the queue pair INIT -> RTR -> RTS. `peer_pid` (SO_PEERCRED) is
  /// the process whose memory may be accessed directly (PeerSpace); 0: none. Errors: EPROTO when the offer does not fit
  /// the memfd, ENOMEM, EINVAL state.
  virtual Status attach(const QueuePairOffer& peer, std::shared_ptr<MappedSegment> peer_segment,
                        std::shared_ptr<Link> link, pid_t peer_pid, std::uint8_t rnr_retry_count) = 0;
  /// The segment of this side is not for another connection.
  virtual void keep_for_nobody() = 0;
  /// ConnectionId::abandon(): private memory takes the place of what is shared with the peer.
  virtual void abandon() = 0;
  /// This process uses the connection from now on: the peer's accesses to registered memory go to this process's.
  virtual void take_over() = 0;
  /// Another process uses it: on return the peer does not access this process's memory, and will not.
  virtual void withdraw_memory() = 0;
};

RcWiring& wiring_of(ibv_qp& qp);

class SoftDevice;
/// An RC queue pair in state INIT with `receive_bytes` of arena. `from_peer` is the requester's segment and the spare
/// room in it (nullptr on the active side): used for the inbox when it is large enough, else a memfd of our own is
/// made. `peer` is the process that it will be connected to, if that is known: a segment kept for it may be used.
struct SpareRoom {
  std::shared_ptr<MappedSegment> segment;
  InboxLayout inbox;
};
struct RcQueuePair {
  ibv_qp* qp;
  void* arena;
  ibv_mr* arena_mr;  ///< nullptr when receive_bytes is 0
};
/// The bytes of the two inboxes that such a queue pair asks for: what a peer like us would offer.
std::uint64_t own_segment_bytes(const ibv_qp_init_attr& attr, std::size_t receive_bytes);
Result<RcQueuePair> create_rc_queue_pair(SoftDevice& device, ibv_pd& pd, ibv_qp_init_attr& attr,
                                         std::size_t receive_bytes, const SpareRoom* from_peer,
                                         std::optional<PeerProcess> peer = std::nullopt);

}  // namespace ringsock::soft
