// A lock that costs its usual user no locked instruction.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/mutex.h"

namespace ringsock {

/// A mutex biased to the thread that uses it. That thread enters and leaves with plain stores; another thread that
/// wants in takes the bias away with a membarrier(2), and from then on it is a Mutex, until one thread has had it for
/// itself long enough to get the bias again. A locked instruction would wait until the stores to the peer's cache lines
/// have drained (50-100 ns a message), which is what the whole data path avoids. Satisfies Lockable. Not recursive,
/// process-private. A process that membarrier(2) refuses gets the plain Mutex at once. fork() while another thread is
/// inside leaves the child's copy locked, as with any mutex, unless the forking thread has locked it out.
class BiasedMutex {
 public:
  BiasedMutex() = default;
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void lock() {
    if (!lock_by_bias()) lock_slow();
  }
  bool try_lock() { return lock_by_bias() || try_lock_slow(); }

  // Taking many at once, as fork(2) needs it, with one membarrier(2) for all and without costing the bias: begin() on
  // each, barrier(), finish() on each. The usual users wait until let_in().
  void lock_out_begin();
  static void lock_out_barrier();
  void lock_out_finish();
  /// @param in_child  of a fork: the biased thread may not exist here.
  void let_in(bool in_child);

  void unlock() {
    if (const int bias = by_bias_; bias != kNotByBias) [[likely]] {
      inside_[static_cast<std::size_t>(bias)].store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

 private:
  static constexpr std::size_t kMaxBiases = 8;
  static constexpr int kNotByBias = -1;
  static constexpr std::uint64_t kUnowned = 0;
  static constexpr std::uint64_t kShared = ~std::uint64_t{0};
  static constexpr std::uint64_t kUnnumbered = std::uint64_t{1} << 63;  ///< a thread that owns nothing yet

  bool lock_by_bias() {
    const std::uint64_t owner = owner_.load(std::memory_order_relaxed);
    const std::size_t bias = owner - tls_thread;
    if (bias >= kMaxBiases) [[unlikely]]
      return false;
    inside_[bias].store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // Looked at again: a revoker's membarrier makes either this load see its store, or its load see ours.
    if (owner_.load(std::memory_order_relaxed) == owner) [[likely]] {
      by_bias_ = static_cast<int>(bias);
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

  // A multiple of kMaxBiases, so that an owner's bias is the difference. Numbers are never reused, so a new thread
  // cannot inherit a dead one's bias without synchronising with it.
  static thread_local constinit std::uint64_t tls_thread __attribute__((tls_model("initial-exec")));

  std::atomic<std::uint64_t> owner_{kUnowned};  ///< the biased thread's number plus the number of the bias
  /// The biased thread holds the lock, or is finding out that it may not. One for each bias there can be: a thread that
  /// lost its bias between its two looks at owner_ still writes here, and must not write where its successor does.
  std::array<std::atomic<bool>, kMaxBiases> inside_{};
  int by_bias_ = kNotByBias;      ///< how the holder came in; its own
  std::uint8_t revocations_ = 0;  ///< number of the next bias; under mutex_, like those below
  std::uint16_t streak_ = 0;      ///< how often last_ came in a row
  std::uint64_t last_ = 0;        ///< who held it last, while shared
  std::uint64_t locked_out_ = 0;  ///< owner_ before lock_out_begin()
  Mutex mutex_;                   ///< everybody else's
};

}  // namespace ringsock
