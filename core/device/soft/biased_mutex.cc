#include "core/device/soft/biased_mutex.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/clock.h"

namespace ringsock::soft {

namespace {

std::atomic<std::uint64_t> g_last_thread{0};

long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }

bool can_revoke() {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return registered;
}

}  // namespace

thread_local constinit std::uint64_t BiasedMutex::tls_thread = 0;

void BiasedMutex::lock_slow() {
  const int saved_errno = errno;
  if (tls_thread == 0) tls_thread = g_last_thread.fetch_add(1, std::memory_order_relaxed) + 1;
  mutex_.lock();
  std::uint64_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == kUnowned && can_revoke()) {
    // Under mutex_, so only one thread gets the bias; the next lock() of this thread uses it.
    owner_.store(tls_thread, std::memory_order_relaxed);
  } else if (owner != kShared) {
    if (owner != kUnowned) revoke();
    owner_.store(kShared, std::memory_order_relaxed);
  }
  by_bias_ = false;
  errno = saved_errno;
}

void BiasedMutex::revoke() {
  owner_.store(kShared, std::memory_order_relaxed);
  membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  for (int spin = 0; inside_.load(std::memory_order_acquire); ++spin) {
    if (spin < 64) {
      cpu_relax();
    } else {
      ::sched_yield();
    }
  }
}

}  // namespace ringsock::soft
