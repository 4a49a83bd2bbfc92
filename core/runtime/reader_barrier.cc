#include "core/runtime/reader_barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

#include "core/runtime/rcu.h"
#include "core/runtime/service_thread.h"

namespace ringsock::runtime {

namespace {

/// Readers leave out their fences while it is not 0 (liburcu's urcu_bp_smp_mb_slave()).
std::atomic_ref<int> liburcu_switch() { return std::atomic_ref(urcu_bp_has_sys_membarrier); }

/// liburcu's readers look at the switch by a plain read while it changes. Whichever value a reader sees, the
/// membarrier(2) behind the change covers its section. TSan does not know that, so it is not shown the change.
__attribute__((noinline, no_sanitize("thread"))) void turn_liburcu_switch(int value) {
  __atomic_store_n(&urcu_bp_has_sys_membarrier, value, __ATOMIC_RELAXED);
}

void membarrier() { ::syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); }

/// Called while readers use fences. Without a service thread they go on doing so.
void look_later() noexcept {
  static_cast<void>(service_thread().schedule(monotonic_now() + ReaderBarrier::kLookInterval, [] {
    if (reader_barrier().look_again()) look_later();
  }));
}

}  // namespace

void ReaderBarrier::forgo_membarrier() noexcept {
  const std::lock_guard guard(lock_);
  is_forbidden_ = true;
  if (!are_readers_fenced() && liburcu_switch().load(std::memory_order_relaxed) != 0) begin_fences();
}

bool ReaderBarrier::needs_membarrier() const noexcept {
  if (way_.load(std::memory_order_relaxed) == Way::fences) return false;
  if (liburcu_switch().load(std::memory_order_relaxed) != 0) return true;
  // Cleared just now, or by liburcu.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return way_.load(std::memory_order_relaxed) == Way::changing;
}

void ReaderBarrier::execute() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (needs_membarrier()) return execute_and_measure();
  executed_.fetch_add(1, std::memory_order_relaxed);
}

void ReaderBarrier::execute_and_measure() noexcept {
  constexpr Nanos kPeriod = std::chrono::milliseconds(4);
  constexpr Nanos kTooMuch = kPeriod / 50;
  const Nanos begun = monotonic_now();
  membarrier();
  const Nanos ended = monotonic_now();
  const Nanos spent = spent_.load(std::memory_order_relaxed) + (ended - begun);
  if (ended - period_began_.load(std::memory_order_relaxed) < kPeriod) {
    spent_.store(spent, std::memory_order_relaxed);
    if (spent < kTooMuch) return;
    if (try_to_begin_fences()) look_later();
  }
  period_began_.store(ended, std::memory_order_relaxed);
  spent_.store(Nanos::zero(), std::memory_order_relaxed);
}

/// Not with look_later() under the lock: a thread that forks takes the service thread's lock before this one.
bool ReaderBarrier::try_to_begin_fences() noexcept {
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (!guard || are_readers_fenced()) return false;
  begin_fences();
  return true;
}

/// Under lock_. Behind the membarrier(2) every section that began without a fence has passed one.
void ReaderBarrier::begin_fences() noexcept {
  way_.store(Way::changing, std::memory_order_seq_cst);
  turn_liburcu_switch(0);
  membarrier();
  executed_.store(0, std::memory_order_relaxed);
  way_.store(Way::fences, std::memory_order_release);
}

/// Under lock_. A thread that took something away and then found that it needs no membarrier(2) did so before the one
/// here, so readers that leave the fence out see what it did.
void ReaderBarrier::end_fences() noexcept {
  way_.store(Way::changing, std::memory_order_seq_cst);
  membarrier();
  turn_liburcu_switch(1);
  way_.store(Way::by_liburcu, std::memory_order_release);
}

bool ReaderBarrier::look_again() noexcept {
  constexpr std::uint32_t kFew = 64;
  const std::lock_guard guard(lock_);
  if (!are_readers_fenced() || is_forbidden_) return false;
  if (executed_.exchange(0, std::memory_order_relaxed) >= kFew) return true;
  end_fences();
  return false;
}

/// The child has one thread, and no timer.
void ReaderBarrier::after_fork_in_child() noexcept {
  if (are_readers_fenced() && !is_forbidden_) end_fences();
  lock_.unlock();
}

}  // namespace ringsock::runtime
