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

/// Adds the conditions that poll(2) and epoll(7) report together: EPOLLRDNORM to EPOLLIN, EPOLLWRNORM to EPOLLOUT. The
/// values of POLL* and EPOLL* are the same.
constexpr std::uint32_t with_normal_bands(std::uint32_t events) {
  if (events & POLLIN) events |= POLLRDNORM;
  if (events & POLLOUT) events |= POLLWRNORM;
  return events;
}

/// ppoll(2): fills `revents` and returns how many entries have any. Endpoints are looked up once per call. They are
/// polled while spinning; then the call sleeps on their descriptors and on kernel descriptors in one ppoll(2). While it
/// waits, a connection whose descriptor another thread closes stays open. The call then ends as it does in the kernel,
/// when an event comes or the time has passed, and reports what is under the number by then.
/// @param timeout  0 looks once, Nanos::max() waits for ever.
/// @param mask     the thread's signal mask meanwhile, or null; a signal that it lets through ends spinning, too.
/// Errors: EINTR, EINVAL, ENOMEM, EFAULT. An entry whose descriptor is not open has POLLNVAL.
Result<int> poll_endpoints(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask);

/// The same without counting the call, which the caller does.
/// @param has_waited  becomes true when the first look found nothing: POLLNVAL then tells of a number that was open.
Result<int> poll_uncounted(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask, bool& has_waited);

/// Returns `nfds` of select(2), or less: the kernel looks at no more bits than the process's descriptor table has,
/// which the library's own numbers have made longer. Threads: any; costs some ten microseconds beyond FD_SETSIZE.
int select_bits(int nfds);

/// pselect(2): leaves the ready descriptors in the sets and returns their number in all three together. The sets may be
/// larger than FD_SETSIZE: `nfds` says how far they go. The sets are unchanged on errors.
/// @param timeout  as above; afterwards the time that was left, as Linux tells it (Nanos::max() stays).
/// Errors: EBADF a descriptor in a set is not open, EINTR, EINVAL, ENOMEM.
Result<int> select_endpoints(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, Nanos& timeout,
                             const sigset_t* mask);

}  // namespace ringsock::runtime
