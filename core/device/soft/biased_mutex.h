// A lock that costs its usual user no locked instruction.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"

namespace ringsock::soft {

/// A mutex biased to the first thread that takes it. That thread enters and leaves with plain stores; the first other
/// thread takes the bias away for good, with a membarrier(2), and from then on it is a Mutex. A locked instruction
/// would wait until the stores to the peer's cache lines have drained (50-100 ns a message), which is what the whole
/// data path avoids. Satisfies Lockable. Not recursive, process-private. A process that membarrier(2) refuses gets the
/// plain Mutex at once. fork() by a thread other than the biased one while that one is inside leaves the child's copy
/// locked, as with any mutex.
class BiasedMutex {
 public:
  BiasedMutex() = default;
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void lock() {
    const std::uint64_t self = tls_thread;
    if (self != 0 && owner_.load(std::memory_order_relaxed) == self) [[likely]] {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      // Looked at again: a revoker's membarrier makes either this load see its store, or its load see ours.
      if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
        by_bias_ = true;
        return;
      }
      inside_.store(false, std::memory_order_release);
    }
    lock_slow();
  }
  void unlock() {
    if (by_bias_) [[likely]] {
      inside_.store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

 private:
  static constexpr std::uint64_t kUnowned = 0;
  static constexpr std::uint64_t kShared = ~std::uint64_t{0};

  void lock_slow();
  void revoke();

  // Numbers are never reused, so a new thread cannot inherit a dead one's bias without synchronising with it.
  static thread_local constinit std::uint64_t tls_thread __attribute__((tls_model("initial-exec")));

  std::atomic<std::uint64_t> owner_{kUnowned};
  std::atomic<bool> inside_{false};  ///< the biased thread holds the lock, or is finding out that it may not
  bool by_bias_ = false;             ///< how the holder came in; its own
  Mutex mutex_;                      ///< everybody else's
};

}  // namespace ringsock::soft
