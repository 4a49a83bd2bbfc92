// A lock of four bytes for short critical sections on the hot path.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock {

/// Futex mutex: one atomic exchange to lock and one to unlock while nobody waits (about 10 ns a pair). A waiter spins
/// briefly, then sleeps in the kernel, so a preempted owner costs no CPU. Satisfies Lockable (std::lock_guard,
/// std::unique_lock). Not recursive, not fair, process-private.
class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() {
    std::uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) lock_slow();
  }
  bool try_lock() {
    std::uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) wake_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kContended = 2;  ///< held, and somebody may sleep

  void lock_slow();
  void wake_one();

  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace ringsock
