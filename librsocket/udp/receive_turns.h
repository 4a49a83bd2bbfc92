// When a UDP socket with many senders gives them the CPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "core/base/biased_mutex.h"
#include "core/poll/busy_turns.h"

namespace ringsock::rs {

/// The turns of the thread that receives. Threads: count() under the lock; take_if_due() any, without it.
class ReceiveTurns {
 public:
  /// @param lock  of the receiving side
  explicit ReceiveTurns(BiasedMutex& lock) : lock_(lock) {}
  /// Counts a receive that has found a datagram, or nothing.
  void count(bool has_received, std::size_t senders) {
    if (!has_received) return turns_.waited();
    if (turns_.served(senders)) is_due_.store(true, std::memory_order_relaxed);
  }
  /// Gives the CPU to the peers, whose last questions have been answered by now, if it is time. The caller may be in a
  /// read-side section: threads that close descriptors meanwhile leave the rest to the service thread
  /// (FdTable::put_back()).
  void take_if_due() {
    if (is_due_.load(std::memory_order_relaxed) && is_due_.exchange(false)) [[unlikely]]
      take();
  }

 private:
  void take() {
    const bool to_others = runtime::offer_cpu();
    const std::lock_guard guard(lock_);
    turns_.taken(to_others);
  }

  BiasedMutex& lock_;
  runtime::BusyTurns turns_;         ///< with lock_
  std::atomic<bool> is_due_{false};  ///< before the next datagram is received
};

}  // namespace ringsock::rs
