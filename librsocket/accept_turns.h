// Several threads or processes that accept from one listener.
#pragma once

#include <atomic>

namespace ringsock::rs {

/// Finds out that several threads of this process accept, and chooses the one that also sleeps on requests that are
/// under way.
class AcceptTurns {
 public:
  /// Returns whether several threads have waited in accept() at once. Threads: any.
  [[nodiscard]] bool are_several() const noexcept { return several_.load(std::memory_order_relaxed); }
  void note_several() noexcept { several_.store(true, std::memory_order_relaxed); }
  /// Returns whether epoll sets have waited with EPOLLEXCLUSIVE. Threads: any.
  [[nodiscard]] bool are_exclusive() const noexcept { return exclusive_.load(std::memory_order_relaxed); }
  void note_exclusive() noexcept {
    note_several();
    exclusive_.store(true, std::memory_order_relaxed);
  }
  /// Notes that the calling thread has found no client. A thread that comes back after another one has been here tells
  /// that both wait, asleep or spinning. The listener's lock must be held.
  void note_vain_accept();
  /// Called before the calling thread sleeps in accept(). Returns true when it is the one thread that also sleeps on
  /// requests that are under way. Threads: any.
  bool look_after_half_made();
  /// Makes the calling thread that thread: it has taken in a client whose request is under way.
  void take_over_half_made();
  /// Called when the calling thread has taken a client and does not sleep again for now. Returns true when it was that
  /// thread, so that another one should take its place. Threads: any.
  bool leave_half_made();

 private:
  std::atomic<bool> several_{false};
  std::atomic<bool> exclusive_{false};
  const char* last_in_vain_ = nullptr;  ///< the mark of the thread of the last accept() that found no client
  int changes_in_vain_ = 0;             ///< how often it was another thread's
  /// The mark of the thread that also sleeps on requests that are under way, or null. A hint: where it is wrong the
  /// service thread serves these requests.
  std::atomic<const char*> looks_after_half_made_{nullptr};
};

}  // namespace ringsock::rs
