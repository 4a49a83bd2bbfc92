// A lock that costs its usual user no locked instruction.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"

namespace ringsock {

/// A mutex biased to the thread that uses it. That thread enters and leaves with plain stores; another thread that wants in takes
/// the bias away with a membarrier(2), and from then on it is a Mutex, until one thread has had it for itself long enough to get
/// the bias again. A locked instruction would wait until the stores to the peer's cache lines have drained (50-100 ns a
/// message), which is what the whole data path avoids.
/// Satisfies Lockable. Not recursive, process-private. A process that membarrier(2) refuses gets the plain Mutex at once.
/// fork() by a thread other than the biased one while that one is inside leaves the child's copy locked, as with any mutex.
class BiasedMutex {
 public:
  BiasedMutex() = default;
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void lock() {
    if (!lock_by_bias()) lock_slow();
  }
  bool try_lock() { return lock_by_bias() || try_lock_slow(); }
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

  bool lock_by_bias() {
    const std::uint64_t self = tls_thread;
    if (self == 0 || owner_.load(std::memory_order_relaxed) != self) [[unlikely]] return false;
    inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // Looked at again: a revoker's membarrier makes either this load see its store, or its load see ours.
    if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
      by_bias_ = true;
      return true;
    }
    inside_.store(false, std::memory_order_release);
    return false;
  }
  void lock_slow();
  bool try_lock_slow();
  void take_over();
  void revoke();

  // Numbers are never reused, so a new thread cannot inherit a dead one's bias without synchronising with it.
  static thread_local constinit std::uint64_t tls_thread __attribute__((tls_model("initial-exec")));

  std::atomic<std::uint64_t> owner_{kUnowned};
  std::atomic<bool> inside_{false};  ///< the biased thread holds the lock, or is finding out that it may not
  bool by_bias_ = false;             ///< how the holder came in; its own
  std::uint8_t revocations_ = 0;     ///< under mutex_, like those below
  std::uint16_t streak_ = 0;         ///< how often last_ came in a row
  std::uint64_t last_ = 0;           ///< who held it last, while shared
  Mutex mutex_;                      ///< everybody else's
};

}  // namespace ringsock
