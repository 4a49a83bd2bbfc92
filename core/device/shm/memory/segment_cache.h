// Keeps segments after their connection ends, for the next connection between the same two processes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/kept_descriptor.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/memory/segment_batch.h"

namespace ringsock::soft {

/// A memfd, its seals, two mappings and the first touch of its pages are a third of the cost of a short connection. So
/// the maker of a segment keeps it, and offers it again to the same process, or to any process of its own user. The
/// process that was given a segment keeps the mapping, and recognises the memfd by its inode and its maker.
///
/// MappedSegment::let_go() returns a kept segment: the peer sets it with its last access, and the maker zeroes it, with
/// all touched pages, before the segment is offered again. A segment whose peer never lets go (it died, or it accepted
/// but is not the process that listens) is not offered again.
///
/// Segments are not kept across fork(2): a fork empties the cache, and the user of a segment in use gives it up. So no
/// third process has a mapping of a connection that it did not inherit as a whole. Between users a kept segment is used
/// only by the process that keeps a mapping of it, or, where other processes accept for the listener (accepters_of()),
/// by a process of their user. The request names that user, an accepter refuses a segment kept for another user, and
/// the maker gives up a connection that another user has answered, because a process of another user may have shown the
/// memory to any process. A segment of another user is let go of only while its mapping is kept here.
///
/// Sparse parts (overflow areas) are large, and have memory only where they were used. A segment keeps that memory for
/// the next connection, because a page's first touch costs more than what is copied into it. Only the bytes that the
/// latest connection may have written are zeroed. Idle segments together keep at most kMaxSparseMemory, and none of it
/// longer than a second, if give_back() is called.
///
/// A process that has so many connections that no place for a kept segment is free makes its segments in batches
/// (segment_batch.h), if the accepters are of its own user and open memory themselves.
///
/// Limits: kMaxKept own segments, in use or not, have a descriptor here (fewer where RLIMIT_NOFILE is below 4096);
/// kMaxKept mappings of peers' segments are kept; no kept segment is larger than kMaxKeptBytes, and none with more than
/// kMaxKeptMemory outside of its sparse parts is offered again.
/// Threads: all functions from any thread.
class SegmentCache {
 public:
  static constexpr ProcessPart kPart = ProcessPart::segments;
  static constexpr std::size_t kMaxKept = 64;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{10} << 20;
  static constexpr std::size_t kMaxKeptMemory = std::size_t{1} << 20;
  static constexpr std::size_t kMaxSparseMemory = std::size_t{16} << 20;

  struct Made {
    std::shared_ptr<MappedSegment> mapping;
    std::shared_ptr<const UniqueFd> memfd;  ///< may be dropped once the peer has it
    MemoryName name{};                      ///< of memfd
    bool reused = false;
    // The segment is one of several in memfd (OwnBatch).
    std::uint32_t part = 0;
    std::uint32_t parts = 1;
  };

  SegmentCache() = default;
  SegmentCache(const SegmentCache&) = delete;
  SegmentCache& operator=(const SegmentCache&) = delete;

  /// Returns a zeroed segment of that size for a connection with `peer`. Uses kept segments only if `peer` is given.
  /// Errors: those of make_segment().
  Result<Made> make(std::uint64_t bytes, std::optional<SegmentPeer> peer);
  /// Returns the kept mapping of a segment that `maker` names, nullptr when there is none.
  std::shared_ptr<MappedSegment> find(const MemoryName& name, PeerProcess maker);
  /// Maps a memfd of `maker` (map_peer_segment()). The segment is let go of in the end if `maker` is given.
  /// Errors: those of map_peer_segment().
  Result<std::shared_ptr<MappedSegment>> map(UniqueFd memfd, const MemoryName& name, std::uint64_t limit,
                                             std::optional<PeerProcess> maker);
  /// The same for a memfd of several segments of `maker`, which must be of our own user, and for its parts: find_part()
  /// returns one that was mapped with another, map_part() maps all. Errors: EPROTO such a part cannot be.
  std::shared_ptr<MappedSegment> find_part(const MemoryName& name, PeerProcess maker, std::uint32_t part);
  Result<std::shared_ptr<MappedSegment>> map_part(UniqueFd memfd, const MemoryName& name, PeerProcess maker,
                                                  std::uint32_t part, std::uint32_t parts);
  /// Gives up the idle segments of that process, which does not know them any more.
  void forget(PeerProcess peer);

  /// Returns the processes for which segments of connections to `listener` are kept: `at_first`, or what was learnt
  /// since. Nothing: no kept segment is offered.
  std::optional<PeerProcess> accepters_of(PeerProcess listener, std::optional<PeerProcess> at_first);
  /// Records the accepters of a listener. At most kMaxKept are remembered.
  void learn_accepters(PeerProcess listener, std::optional<PeerProcess> accepters, Nanos now);
  /// Records whether the accepters of a listener, which are of our own user, open memory themselves. If so, segments
  /// for them may be parts of one memfd.
  void learn_opening(PeerProcess listener, PeerProcess accepters, bool opens);
  [[nodiscard]] bool do_open(PeerProcess listener);
  /// Records that an accepter could not open such a memfd: none is offered to that listener's accepters any more, or
  /// each of them that can open memory would have the next connection of the others refused.
  void part_refused(PeerProcess listener, PeerProcess accepters);
  /// Records that the accepters refused a kept segment: none is offered to them for a second.
  void accepters_refused(PeerProcess listener, Nanos now);

  /// Returns the number of unused segments of both kinds.
  [[nodiscard]] std::size_t idle();
  /// Returns the memory of the sparse parts of unused segments.
  [[nodiscard]] std::size_t idle_sparse_memory() const { return sparse_memory_.load(std::memory_order_relaxed); }
  /// Gives up the segments with sparse memory that have not been used for a second. Returns whether others have some.
  bool give_back(Nanos now);
  /// Gives up all unused segments.
  void clear();

  // Handlers for fork(2).
  void before_fork();
  void after_fork();

 private:
  struct Stretch {
    std::size_t at;
    std::size_t bytes;
  };
  struct Kept {
    std::shared_ptr<MappedSegment> mapping;
    KeptDescriptor memfd;  ///< of own segments
    PeerProcess peer;
    Inode inode;
    unsigned forks = 0;                  ///< the number of forks when it was lent
    Nanos unused_since = Nanos::zero();  ///< of idle segments with sparse memory
    // Of own segments: the parts of the file with memory when it had this number of blocks (stat(2)).
    blkcnt_t known_blocks = 0;
    std::vector<Stretch> touched{};
  };
  using List = std::list<Kept>;
  struct MadeLoan;
  struct GivenLoan;

  Result<Made> make_new(std::uint64_t bytes, std::optional<SegmentPeer> peer);
  static bool is_of_own_user(const Kept& kept);
  static void withdraw_let_go(const Kept& kept);
  static bool restore(Kept& kept);
  static bool find_touched(Kept& kept, blkcnt_t blocks);
  static void empty_sparse(const List& made);
  std::shared_ptr<MadeLoan> begin_loan(PeerProcess peer, std::uint64_t bytes);
  static Made lend_made(const std::shared_ptr<MadeLoan>& loan, bool reused);
  static std::shared_ptr<MappedSegment> lend_given(const std::shared_ptr<GivenLoan>& loan);
  bool take_back_made(List& kept);
  void take_back_given(List& kept);
  bool reserve_place(List& dropped);
  void add_idle(List& idle, List& kept, List& dropped);
  void take_out(List& idle, List::iterator place, List& out);
  void drop(List& idle, List::iterator place, List& dropped);
  void drop_oldest_of_dead(List& idle, List& dropped);
  void drop_unused_since(Nanos when, List& idle, List& dropped);
  void clear_locked(List& made, List& given);

  Mutex lock_;
  List made_;   ///< idle, the most recently used in front
  List given_;  ///< idle, the last used in front
  OwnBatch own_batch_;
  GivenBatches given_batches_;
  std::atomic<std::size_t> sparse_memory_{0};  ///< of made_ and given_; changed with lock_
  std::size_t made_places_ = 0;                ///< own segments that hold a descriptor for the cache: lent or in made_
  unsigned forks_ = 0;
  struct Accepters {
    PeerProcess listener;
    std::optional<PeerProcess> who;
    Nanos refusing_until;
    bool do_open = false;
    bool has_refused_part = false;
  };
  Accepters& accepters_at(PeerProcess listener);
  Accepters& accepters_at(PeerProcess listener, PeerProcess who);
  std::list<Accepters> accepters_;  ///< the most recently learnt in front
};

/// The cache of this process.
inline SegmentCache& segment_cache() { return process_state<SegmentCache>(); }

}  // namespace ringsock::soft
