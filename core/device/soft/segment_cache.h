// Segments that outlive their connection, for the next connection between the same two processes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/rc_wiring.h"
#include "core/device/soft/segment.h"

namespace ringsock::soft {

/// A memfd, its seals, two mappings and the first touch of its pages are a third of what a short connection costs. So
/// the maker of a segment keeps it, and offers it again to the same process, or to any process of its own user; who was
/// given a segment keeps the mapping, and knows the memfd by its inode and its maker when it comes again.
///
/// A kept segment changes hands by MappedSegment::let_go(): the peer sets it with its last access, the maker zeroes it,
/// and everything else that was touched, before the segment is offered again. A peer that never lets go (it died, it is
/// an accepting process that is not the one that listens) is not offered the segment again.
///
/// Never across fork(2): a fork empties the cache, and a segment that was in use meanwhile is given up by its user. So
/// no third process holds a mapping of a connection that it did not inherit as a whole. Between users a kept segment is
/// used only by the very process that keeps a mapping of it (SoftId): another program under that process number, or
/// after an exec(2), refuses it, because its predecessor may have shown the memory to anybody. So a segment of another
/// user is let go of only while its mapping is kept here.
///
/// Bounds: kMaxKept segments made, in use or not, have a descriptor here (fewer where RLIMIT_NOFILE is small); kMaxKept
/// mappings of peers' segments are kept; none larger than kMaxKeptBytes. Threads: all functions from any thread.
class SegmentCache {
 public:
  static constexpr std::size_t kMaxKept = 16;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 20;

  struct Made {
    std::shared_ptr<MappedSegment> mapping;
    std::shared_ptr<const UniqueFd> memfd;  ///< may be dropped once the peer has it
    MemoryName name{};                      ///< of memfd
    bool reused = false;
  };

  SegmentCache() = default;
  SegmentCache(const SegmentCache&) = delete;
  SegmentCache& operator=(const SegmentCache&) = delete;

  /// A zeroed segment of that size, for a connection with `peer`: kept ones only when it is given. Errors: those of
  /// make_segment().
  Result<Made> make(std::uint64_t bytes, std::optional<PeerProcess> peer);
  /// The mapping that was kept of a segment that `maker` names; nullptr when there is none.
  std::shared_ptr<MappedSegment> find(const MemoryName& name, PeerProcess maker);
  /// A new mapping of a memfd of `maker`'s (map_peer_segment()), which is let go of in the end when `maker` is given.
  /// Errors: those of map_peer_segment().
  Result<std::shared_ptr<MappedSegment>> map(UniqueFd memfd, const MemoryName& name, std::uint64_t limit,
                                             std::optional<PeerProcess> maker);
  /// Gives up what is idle of that process: it does not know its segments any more.
  void forget(PeerProcess peer);

  /// Segments that nobody uses now, of both kinds.
  [[nodiscard]] std::size_t idle();
  /// Gives all of them up.
  void clear();

  // For pthread_atfork(3).
  void before_fork();
  void after_fork();

 private:
  struct Inode {
    dev_t device = 0;
    ino_t number = 0;
    bool operator==(const Inode&) const = default;
  };
  static Inode inode_of(const UniqueFd& fd);
  /// A program may close every descriptor that it does not know, and open others under their numbers: such a number is
  /// neither passed on nor closed.
  struct KeptDescriptor {
    UniqueFd fd;
    Inode inode;
    KeptDescriptor() = default;
    KeptDescriptor(UniqueFd kept, Inode known) : fd(std::move(kept)), inode(known) {}
    KeptDescriptor(KeptDescriptor&&) = default;
    KeptDescriptor& operator=(KeptDescriptor&&) = delete;
    ~KeptDescriptor() {
      if (fd && !is_still_ours()) (void)fd.release();
    }
    [[nodiscard]] bool is_still_ours() const { return inode_of(fd) == inode; }
  };
  struct Kept {
    std::shared_ptr<MappedSegment> mapping;
    KeptDescriptor memfd;  ///< of those we made
    PeerProcess peer;
    Inode inode;
    unsigned forks = 0;  ///< how often the process had forked when it came into use
  };
  using List = std::list<Kept>;
  struct MadeLoan;
  struct GivenLoan;

  static bool is_of_own_user(const Kept& kept);
  static void withdraw_let_go(const Kept& kept);
  static bool restore(const Kept& kept);
  Made lend_made(Kept kept, bool reused);
  std::shared_ptr<MappedSegment> lend_given(Kept kept);
  void take_back_made(Kept kept);
  void take_back_given(Kept kept);
  bool reserve_place(List& dropped);
  static void drop_oldest_of_dead(List& idle, List& dropped);
  void clear_locked(List& dropped);

  Mutex lock_;
  List made_;                    ///< idle, the last used in front
  List given_;                   ///< idle, the last used in front
  std::size_t made_places_ = 0;  ///< segments we made that hold a descriptor for the cache: lent or in made_
  unsigned forks_ = 0;
};

/// The process's own. Never destroyed.
SegmentCache& segment_cache();

}  // namespace ringsock::soft
