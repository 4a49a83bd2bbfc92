// A lock that its holder may never leave.
#pragma once

#include <sched.h>

#include <mutex>

#include "core/base/clock.h"

namespace ringsock {

/// Locks for a process that ends, in which another thread may be in the middle of a call and may never leave it, or for
/// a signal handler, whose own thread may be. The result is without the lock after `until`.
template <class Lock>
std::unique_lock<Lock> lock_until(Lock& lock, Nanos until) {
  std::unique_lock guard(lock, std::try_to_lock);
  while (!guard && monotonic_now() < until) {
    ::sched_yield();
    static_cast<void>(guard.try_lock());
  }
  return guard;
}

}  // namespace ringsock
