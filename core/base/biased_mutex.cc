#include "core/base/biased_mutex.h"

#include <sched.h>

#include <cerrno>

#include "core/base/clock.h"
#include "core/base/membarrier.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock {

namespace {

struct LockNumbers {
  static constexpr ProcessPart kPart = ProcessPart::lock_numbers;
  std::atomic<std::uint64_t> last{0};
};

[[gnu::constructor]] void start() { process_state<LockNumbers>(); }

constexpr int kStreakForBias = 32;

bool can_revoke() {
  return register_for_barriers(BarrierScope::this_process) && is_permitted(RareCall::membarrier_private);
}

}  // namespace

void BiasedMutex::lock_slow() {
  const int saved_errno = errno;
  mutex_.lock();
  take_over();
  errno = saved_errno;
}

bool BiasedMutex::try_lock_slow() {
  const int saved_errno = errno;
  if (!mutex_.try_lock()) return false;
  // The biased thread holds the lock only while it is inside, so this waits no longer than its critical section.
  take_over();
  errno = saved_errno;
  return true;
}

/// Called with mutex_ held, when no thread can enter by bias. Decides which thread gets the bias next.
void BiasedMutex::take_over() {
  std::uint64_t& number = this_thread.lock_number;
  if (number == ThisThread::kUnnumbered)
    number = kMaxBiases * (process_state<LockNumbers>().last.fetch_add(1, std::memory_order_relaxed) + 1);
  const std::uint64_t owner = owner_.load(std::memory_order_relaxed);
  if (owner != kShared) {
    revoke(owner);
    ++revocations_;
    streak_ = 0;
  }
  // Set only after revoke() has seen the biased thread leave: that thread reads by_bias_ when it unlocks.
  by_bias_ = kNotByBias;
  streak_ = last_ == number ? static_cast<std::uint16_t>(streak_ + 1) : std::uint16_t{0};
  last_ = number;
  // A connection that several threads use during a short life never has a bias to revoke. After each revoked bias the
  // next one takes twice as long to earn.
  if (revocations_ < kMaxBiases && streak_ >= kStreakForBias << revocations_ && can_revoke()) {
    owner_.store(number + revocations_, std::memory_order_relaxed);
  }
}

void BiasedMutex::revoke(std::uint64_t owner) {
  owner_.store(kShared, std::memory_order_relaxed);
  run_barrier(BarrierScope::this_process);
  wait_until_outside(owner);
}

void BiasedMutex::wait_until_outside(std::uint64_t owner) {
  const std::atomic<bool>& inside = inside_[owner & (kMaxBiases - 1)];
  for (int spin = 0; inside.load(std::memory_order_acquire); ++spin) {
    if (spin < 64) {
      cpu_relax();
    } else {
      ::sched_yield();
    }
  }
}

// -- locking all other threads out -----------------------------------------------------------------

void BiasedMutex::lock_out_begin() {
  mutex_.lock();
  last_ = owner_.load(std::memory_order_relaxed);
  owner_.store(kShared, std::memory_order_relaxed);
}

void BiasedMutex::lock_out_barrier() { run_barrier(BarrierScope::this_process); }

void BiasedMutex::lock_out_finish() {
  if (last_ != kShared) wait_until_outside(last_);
}

void BiasedMutex::let_in(bool in_child) {
  if (in_child) {
    // The biased thread of the parent may have been finding out that it may not enter.
    for (std::atomic<bool>& inside : inside_) inside.store(false, std::memory_order_relaxed);
  }
  if (in_child && last_ != kShared && last_ - this_thread.lock_number >= kMaxBiases) {
    // No thread of the child has the bias.
    last_ = kShared;
    revocations_ = 0;
  }
  // The biased thread may be between its two loads of owner_. The second load tells it that it may enter, which is
  // true.
  owner_.store(last_, std::memory_order_release);
  last_ = 0;
  mutex_.unlock();
}

}  // namespace ringsock
