// Time-outs as the C calls take them, for the C edges.
#pragma once

#include <sys/select.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/poll/poll_set.h"

namespace ringsock::runtime {

/// Converts a time-out of poll(2) and epoll_wait(2): negative means for ever.
inline Nanos from_milliseconds(int timeout) {
  return timeout < 0 ? Nanos::max() : Nanos(std::chrono::milliseconds(timeout));
}

/// This many seconds count as for ever: more would not fit Nanos.
inline constexpr time_t kForEverSeconds = 1'000'000'000;

/// Converts a time-out of ppoll(2): null means for ever. Errors: EINVAL.
inline Result<Nanos> from_timespec(const timespec* timeout) {
  if (timeout == nullptr) return Nanos::max();
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
    return Error{EINVAL, "time-out"};
  }
  if (timeout->tv_sec >= kForEverSeconds) return Nanos::max();
  return Nanos(std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec));
}

/// Converts a time-out of select(2): null means for ever. Errors: EINVAL.
inline Result<Nanos> from_timeval(const timeval* timeout) {
  if (timeout == nullptr) return Nanos::max();
  if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return Error{EINVAL, "select: time-out"};
  if (timeout->tv_sec >= kForEverSeconds) return Nanos::max();
  return Nanos(std::chrono::seconds(timeout->tv_sec) + std::chrono::microseconds(timeout->tv_usec));
}

/// select(2). The time that was left is stored in `timeout`, if not null.
inline Result<int> select_endpoints(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional,
                                    timeval* timeout) {
  auto left = from_timeval(timeout);
  if (!left) return left.error();
  auto ready = select_endpoints(nfds, readable, writable, exceptional, *left, nullptr);
  if (timeout != nullptr && *left != Nanos::max()) {
    timeout->tv_sec = std::chrono::duration_cast<std::chrono::seconds>(*left).count();
    timeout->tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(*left).count() % 1'000'000;
  }
  return ready;
}

}  // namespace ringsock::runtime
