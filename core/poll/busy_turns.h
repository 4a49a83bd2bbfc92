// Turns of a thread that serves many peers and always finds something to do.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ringsock::runtime {

/// Offers the CPU to the peers of a thread that never waits. As long as it finds something in each call, a peer on its
/// CPU gets a turn only at the end of the thread's time slice. Such a peer learns that a yield costs a slice
/// (LostSlices), sleeps from then on, and each answer has to wake it, so that the thread has even more to do. So the
/// thread yields once it has served twice as many messages as it has peers: those on other CPUs have had two turns
/// then, and the others wait for theirs. Where nobody wants the CPU, the following yields come after two, four ... 32
/// times as many. Threads: the caller's lock.
class BusyTurns {
 public:
  /// A thread that serves fewer peers finds nothing often enough, and offers the CPU then.
  static constexpr std::size_t kFewestPeers = 4;
  /// Messages from each peer between two yields, and how many peers are assumed at least: a yield that nobody uses
  /// takes as long as four messages. With 64 client processes on two CPUs, 2 rounds give 3 % more than 1, and 20 % more
  /// than 4.
  static constexpr std::size_t kRounds = 2;
  static constexpr std::size_t kFewestMessages = 16;
  static constexpr unsigned kMostDoublings = 5;

  /// Counts a message that was there when the thread asked for it. Returns whether it is time to yield, before the next
  /// one is taken: taken() follows.
  bool served(std::size_t peers) {
    if (peers < kFewestPeers) return false;
    return ++served_ >= kRounds * std::max(peers, kFewestMessages) << doublings_;
  }
  /// The thread had to wait.
  void waited() { served_ = 0; }
  /// The thread has yielded.
  /// @param to_others  another thread has run meanwhile
  void taken(bool to_others) {
    served_ = 0;
    doublings_ = to_others ? 0 : std::min(doublings_ + 1, kMostDoublings);
  }

 private:
  std::size_t served_ = 0;
  unsigned doublings_ = 0;
};

/// Yields, unless that is known to cost a time slice. Returns whether another thread has run meanwhile.
bool offer_cpu();

}  // namespace ringsock::runtime
