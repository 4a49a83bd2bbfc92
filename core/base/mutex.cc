#include "core/base/mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/clock.h"

namespace ringsock {

namespace {
long futex(std::atomic<std::uint32_t>* word, int op, std::uint32_t value) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), op | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr,
                   0);
}
}  // namespace

void Mutex::lock_slow() {
  const int saved_errno = errno;
  for (int spin = 0; spin < 64; ++spin) {
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) {
      errno = saved_errno;
      return;
    }
    cpu_relax();
  }
  while (state_.exchange(kContended, std::memory_order_acquire) != kFree) futex(&state_, FUTEX_WAIT, kContended);
  errno = saved_errno;
}

void Mutex::wake_one() {
  const int saved_errno = errno;
  futex(&state_, FUTEX_WAKE, 1);
  errno = saved_errno;
}

}  // namespace ringsock
