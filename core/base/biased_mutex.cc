#include "core/base/biased_mutex.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/clock.h"
#include "core/base/rare_calls.h"

namespace ringsock {

namespace {

std::atomic<std::uint64_t> g_last_thread{0};

constexpr int kStreakForBias = 32;

long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }

bool can_revoke() {
  static const bool registered =
      is_permitted(RareCall::membarrier_private) && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return registered && is_permitted(RareCall::membarrier_private);
}

}  // namespace

thread_local constinit std::uint64_t BiasedMutex::tls_thread = BiasedMutex::kUnnumbered;

void BiasedMutex::lock_slow() {
  const int saved_errno = errno;
  mutex_.lock();
  take_over();
  errno = saved_errno;
}

bool BiasedMutex::try_lock_slow() {
  const int saved_errno = errno;
  if (!mutex_.try_lock()) return false;
  // Somebody's bias counts as held only while he is inside: waiting for that is as short as his critical section.
  take_over();
  errno = saved_errno;
  return true;
}

/// mutex_ is held; now nobody may come in by bias. Decides who may next time.
void BiasedMutex::take_over() {
  if (tls_thread == kUnnumbered) tls_thread = kMaxBiases * (g_last_thread.fetch_add(1, std::memory_order_relaxed) + 1);
  const std::uint64_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == kUnowned) {
    by_bias_ = kNotByBias;
    owner_.store(can_revoke() ? tls_thread : kShared, std::memory_order_relaxed);
    return;
  }
  if (owner != kShared) {
    revoke(owner);
    ++revocations_;
    streak_ = 0;
  }
  // Not before revoke() has seen the biased thread leave: until then this is how that thread finds its way out.
  by_bias_ = kNotByBias;
  streak_ = last_ == tls_thread ? static_cast<std::uint16_t>(streak_ + 1) : std::uint16_t{0};
  last_ = tls_thread;
  // Handed on from the thread that set things up to the one that works with them, say. Each time it proves wrong, the
  // next bias takes twice as long to earn.
  if (revocations_ < kMaxBiases && streak_ >= kStreakForBias << revocations_) {
    owner_.store(tls_thread + revocations_, std::memory_order_relaxed);
  }
}

void BiasedMutex::revoke(std::uint64_t owner) {
  owner_.store(kShared, std::memory_order_relaxed);
  if (can_revoke()) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
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

// -- all others out
// ----------------------------------------------------------------------------------------------------

void BiasedMutex::lock_out_begin() {
  mutex_.lock();
  locked_out_ = owner_.load(std::memory_order_relaxed);
  if (locked_out_ != kUnowned) owner_.store(kShared, std::memory_order_relaxed);
}

void BiasedMutex::lock_out_barrier() {
  if (can_revoke()) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

void BiasedMutex::lock_out_finish() {
  if (locked_out_ != kUnowned && locked_out_ != kShared) wait_until_outside(locked_out_);
}

void BiasedMutex::let_in(bool in_child) {
  if (in_child && locked_out_ != kShared && locked_out_ - tls_thread >= kMaxBiases) {
    // The bias is nobody's: it goes to whoever comes first.
    locked_out_ = kUnowned;
    revocations_ = 0;
  }
  // The biased thread may be between its two looks at owner_; it is told that it may come in, and so it may.
  owner_.store(locked_out_, std::memory_order_release);
  mutex_.unlock();
}

}  // namespace ringsock
