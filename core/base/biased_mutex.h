// A lock that costs its usual user no locked instruction.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/mutex.h"
#include "core/base/this_thread.h"

namespace ringsock {

/// A mutex that can be biased to the thread that uses it. It starts as a Mutex. A thread that alone has used it long
/// enough earns the bias, and then locks and unlocks with plain stores. Another thread that locks revokes the bias with
/// a membarrier(2). A locked instruction would wait until the stores to the peer's cache lines have drained (50-100 ns
/// a message), which is what the whole data path avoids. Satisfies Lockable. Not recursive, process-private. Where
/// membarrier(2) is refused, the lock stays a Mutex. fork() while another thread is inside leaves the child's copy
/// locked, as with any mutex, unless the forking thread has locked it out. It lies in one cache line.
class alignas(32) BiasedMutex {
 public:
  BiasedMutex() = default;
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void lock() {
    if (!lock_by_bias()) lock_slow();
  }
  bool try_lock() { return lock_by_bias() || try_lock_slow(); }

  // Locks many at once, as fork(2) needs it, with one membarrier(2) for all and without revoking the bias: call
  // lock_out_begin() on each, the barrier, then lock_out_finish() on each. Other threads wait until let_in().
  void lock_out_begin();
  static void lock_out_barrier();
  void lock_out_finish();
  /// @param in_child this is the child of a fork, where the biased thread may not exist
  void let_in(bool in_child);

  void unlock() {
    if (const std::uint8_t bias = by_bias_; bias != kNotByBias) [[likely]] {
      inside_[bias].store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

 private:
  static constexpr std::size_t kMaxBiases = 8;
  static constexpr std::uint8_t kNotByBias = 255;
  static constexpr std::uint64_t kShared = ~std::uint64_t{0};

  bool lock_by_bias() {
    const std::uint64_t owner = owner_.load(std::memory_order_relaxed);
    const std::size_t bias = owner - this_thread.lock_number;
    if (bias >= kMaxBiases) [[unlikely]]
      return false;
    inside_[bias].store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // Loaded again: the revoking thread's membarrier ensures that either this load sees its store, or its load sees
    // ours.
    if (owner_.load(std::memory_order_relaxed) == owner) [[likely]] {
      by_bias_ = static_cast<std::uint8_t>(bias);
      return true;
    }
    inside_[bias].store(false, std::memory_order_release);
    return false;
  }
  void lock_slow();
  bool try_lock_slow();
  void take_over();
  void revoke(std::uint64_t owner);
  void wait_until_outside(std::uint64_t owner);

  // A thread's lock_number is a multiple of kMaxBiases, so that owner_ minus this number is the number of the bias.
  // Numbers are never reused, so a new thread cannot inherit the bias of a dead thread without synchronising with it.
  std::atomic<std::uint64_t> owner_{kShared};  ///< the biased thread's number plus the number of the bias
  /// Whether the biased thread holds the lock or is finding out that it may not. Each possible bias has its own flag: a
  /// thread that lost its bias between its two loads of owner_ still writes its flag, which must not be its
  /// successor's.
  std::array<std::atomic<bool>, kMaxBiases> inside_{};
  std::uint8_t by_bias_ = kNotByBias;  ///< how the holder locked it; only the holder accesses it
  std::uint8_t revocations_ = 0;       ///< number of the next bias; under mutex_, like those below
  std::uint16_t streak_ = 0;           ///< how many times in a row last_ has locked
  Mutex mutex_;                        ///< the lock of all threads without the bias
  /// While the lock is shared: the last holder. From lock_out_begin() to let_in(): owner_ before.
  std::uint64_t last_ = 0;
};

}  // namespace ringsock
