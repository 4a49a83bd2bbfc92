// Sleeping until a descriptor is ready.
#pragma once

#include <poll.h>

#include <csignal>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock {

/// Calls ppoll(2) until an absolute time of CLOCK_MONOTONIC (Nanos::max(): no limit). Errors: EINTR, ENOMEM, EINVAL. A
/// cancellation point (pthreads(7)): no lock may be held that is not released by unwinding, and no function on the
/// stack may be noexcept, unless NoCancellation holds. @return as ppoll: the number of ready entries, 0 once the
/// deadline has passed.
Result<int> poll_until(std::span<pollfd> fds, Nanos deadline, const sigset_t* mask);

}  // namespace ringsock
