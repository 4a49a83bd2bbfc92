// poll(2) and select(2) over descriptors of ours and of the kernel alike.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include <csignal>
#include <cstdint>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock::runtime {

/// Conditions as poll(2) and epoll(7) name them: a socket that has EPOLLIN also has EPOLLRDNORM, one that has EPOLLOUT
/// also EPOLLWRNORM. The values of POLL* and EPOLL* are the same.
constexpr std::uint32_t with_normal_bands(std::uint32_t events) {
  if (events & POLLIN) events |= POLLRDNORM;
  if (events & POLLOUT) events |= POLLWRNORM;
  return events;
}

/// ppoll(2): fills `revents` and returns how many entries have any.
/// Descriptors of ours are looked up once per call. They are polled while spinning; then the call sleeps on them and on
/// the kernel's in one ppoll(2).
/// @param timeout  0 looks once, Nanos::max() waits for ever.
/// @param mask     the thread's signal mask meanwhile, or null; a signal that it lets through ends spinning, too.
/// Errors: EINTR, EINVAL, ENOMEM, EFAULT. An entry whose descriptor is not open, or is closed meanwhile, has POLLNVAL.
Result<int> poll_endpoints(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask);

/// The same, counted by the caller.
Result<int> poll_uncounted(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask);

/// pselect(2): leaves the ready descriptors in the sets and returns their number in all three together. The sets may be
/// larger than FD_SETSIZE: `nfds` says how far they go. Unchanged on errors.
/// @param timeout  as above; afterwards the time that was left, as Linux tells it (Nanos::max() stays).
/// Errors: EBADF a descriptor in a set is not open, EINTR, EINVAL, ENOMEM.
Result<int> select_endpoints(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, Nanos& timeout,
                             const sigset_t* mask);

}  // namespace ringsock::runtime
