// poll, select, epoll.
#include <algorithm>
#include <cerrno>
#include <span>

#include "core/base/at_fork.h"
#include "core/poll/epoll_set.h"
#include "core/poll/kernel_members.h"
#include "core/poll/poll_set.h"
#include "core/poll/wait.h"
#include "preload/any_ours.h"
#include "preload/epoll_nesting.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

using runtime::KernelMembers;

// The parts for endpoints are functions of their own, so that calls that go to libc save no registers for them.

constexpr std::size_t kKernelSetBytes = 8;

int bad_address() {
  errno = EFAULT;
  return -1;
}

/// Fails as in the kernel for more entries than the process may have descriptors (poll(2), EINVAL). The kernel counts
/// before it looks at the entries.
Status check_count(nfds_t count) {
  constexpr nfds_t kFew = 64;  // a limit below is not worth a system call
  if (count > kFew && real.poll(nullptr, count, 0) < 0 && errno == EINVAL) return Error{EINVAL, "poll"};
  return ok();
}

Result<int> poll_endpoints(pollfd* fds, nfds_t count, Nanos timeout, const sigset_t* mask) {
  if (Status fine = check_count(count); !fine) return fine.error();
  return runtime::poll_endpoints({fds, count}, timeout, mask);
}

[[gnu::noinline]] int poll_any(pollfd* fds, nfds_t count, int timeout) {
  if (!any_ours(fds, count)) return real.poll(fds, count, timeout);
  return as_library_call(
      [&] { return to_posix([&] { return poll_endpoints(fds, count, from_milliseconds(timeout), nullptr); }); });
}

[[gnu::always_inline]] inline int poll_ours(pollfd* fds, nfds_t count, int timeout) {
  asm("" : "+r"(fds));  // libc's header declares that poll() only writes there, and the compiler relies on that
  const bool one_of_libcs = count == 1 && is_near_on_stack(fds) && !fd_table().holds(fds->fd);
  if (one_of_libcs) return real.poll(fds, count, timeout);
  return at_cancellation_point<&poll_any>(fds, count, timeout);
}

int ppoll_ours(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  // libc reads the time-out itself, and would crash.
  if ((timeout != nullptr && !are_readable(timeout)) || (mask != nullptr && !is_readable(mask, kKernelSetBytes)))
    return bad_address();
  if (!any_ours(fds, count)) return real.ppoll(fds, count, timeout, mask);
  const CancellationPoint point;
  return as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      const auto left = from_timespec(timeout);
      if (!left) return left.error();
      return poll_endpoints(fds, count, *left, mask);
    });
  });
}

[[gnu::noinline]] int select_ours(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  if (timeout != nullptr && !are_writable(timeout)) return bad_address();
  if (!any_ours(nfds, readable, writable, exceptional)) {
    return real.select(runtime::select_bits(nfds), readable, writable, exceptional, timeout);
  }
  return as_library_call([&] {
    return to_posix([&] { return runtime::select_endpoints(nfds, readable, writable, exceptional, timeout); });
  });
}

/// Checks that there is room for one event. For more events the kernel itself reports an error only when as many have
/// come.
Status check_room(const epoll_event* events, int count) {
  if (count <= 0) return Error{EINVAL, "epoll_wait"};
  if (!are_writable(events)) return Error{EFAULT, "epoll_wait"};
  return ok();
}

[[gnu::noinline]] int wait_in_set(int epoll_fd, epoll_event* events, int count, int timeout) {
  return as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      if (Status fine = check_room(events, count); !fine) return fine.error();
      return runtime::epoll_wait_for(epoll_fd, events, count, from_milliseconds(timeout), nullptr);
    });
  });
}
[[gnu::noinline]] int wait_in_set_masked(int epoll_fd, epoll_event* events, int count, const Result<Nanos>& timeout,
                                         const sigset_t* mask) {
  const CancellationPoint point;
  return as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      if (!timeout) return timeout.error();
      if (mask != nullptr && !is_readable(mask, kKernelSetBytes)) return Error{EFAULT, "epoll_pwait"};
      if (Status fine = check_room(events, count); !fine) return fine.error();
      return runtime::epoll_wait_for(epoll_fd, events, count, *timeout, mask);
    });
  });
}

/// Carries out epoll_wait(2) and its relatives. `libcs` waits in the kernel, and another thread may adopt the set
/// meanwhile.
[[gnu::always_inline]] inline int epoll_wait_ours(int epoll_fd, epoll_event* events, auto libcs, auto ours) {
  if (fd_table().holds(epoll_fd)) return ours();
  const int ready = libcs();
  if (ready <= 0 || !fd_table().holds(epoll_fd)) [[likely]]
    return ready;
  const int left = KernelMembers::forget_wake_up(events, ready);
  return left > 0 ? left : ours();
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int poll(pollfd* fds, nfds_t count, int timeout) { return poll_ours(fds, count, timeout); }
RS_INTERCEPT int __poll(pollfd* fds, nfds_t count, int timeout) { return poll_ours(fds, count, timeout); }
RS_INTERCEPT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof *fds < count) return real.__poll_chk(fds, count, timeout, room);  // does not return
  return poll_ours(fds, count, timeout);
}

RS_INTERCEPT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return ppoll_ours(fds, count, timeout, mask);
}
RS_INTERCEPT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t room) {
  if (room / sizeof *fds < count) return real.__ppoll_chk(fds, count, timeout, mask, room);  // does not return
  return ppoll_ours(fds, count, timeout, mask);
}

RS_INTERCEPT int select(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  return at_cancellation_point<&select_ours>(nfds, readable, writable, exceptional, timeout);
}
RS_INTERCEPT int __select(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  return at_cancellation_point<&select_ours>(nfds, readable, writable, exceptional, timeout);
}

RS_INTERCEPT int pselect(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, const timespec* timeout,
                         const sigset_t* mask) {
  if ((timeout != nullptr && !are_readable(timeout)) || (mask != nullptr && !is_readable(mask, kKernelSetBytes)))
    return bad_address();
  if (!any_ours(nfds, readable, writable, exceptional)) {
    return real.pselect(runtime::select_bits(nfds), readable, writable, exceptional, timeout, mask);
  }
  const CancellationPoint point;
  return as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      auto left = from_timespec(timeout);
      if (!left) return left.error();
      return runtime::select_endpoints(nfds, readable, writable, exceptional, *left, mask);
    });
  });
}

RS_INTERCEPT int epoll_create(int size) noexcept {
  const int fd = real.epoll_create(size);
  drop_stale(fd);
  note_epoll_set(fd);
  return fd;
}

RS_INTERCEPT int epoll_create1(int flags) noexcept {
  const int fd = real.epoll_create1(flags);
  drop_stale(fd);
  note_epoll_set(fd);
  return fd;
}

namespace {

/// What a child enters into a set of its parent counts for both processes, so a connection that both have becomes the
/// kernel's. A parent does not do so: servers change their sets while children that execute a program have copies.
void share_with_parent(int epoll_fd, int op, int fd) {
  if ((op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD) || fork_generation() == 0) return;
  const runtime::Ref endpoint = fd_table().get(fd);
  if (!endpoint || !hand_overs().has_other_processes(*endpoint) || !is_inherited_set(epoll_fd)) return;
  hand_overs().become_kernels(endpoint);
}

}  // namespace

RS_INTERCEPT int epoll_ctl(int epoll_fd, int op, int fd, epoll_event* event) {
  if (!fd_table().holds(fd) && !fd_table().holds(epoll_fd)) [[likely]] {
    return real.epoll_ctl(epoll_fd, op, fd, event);
  }
  const DeferredCancellation deferred;
  return as_library_call([&] {
    return to_posix([&]() -> Status {
      if (op != EPOLL_CTL_DEL && !are_readable(event)) return Error{EFAULT, "epoll_ctl"};
      share_with_parent(epoll_fd, op, fd);
      // A set is adopted when its first endpoint is added.
      if (!fd_table().holds(epoll_fd)) {
        if (op != EPOLL_CTL_ADD || !fd_table().holds(fd))
          return real.epoll_ctl(epoll_fd, op, fd, event) == 0 ? ok() : Status(Error::last("epoll_ctl"));
        if (Status adopted = adopt_epoll_set(epoll_fd); !adopted) return adopted;
      }
      return runtime::epoll_control(epoll_fd, op, fd, event);
    });
  });
}

RS_INTERCEPT int epoll_wait(int epoll_fd, epoll_event* events, int count, int timeout) {
  // Kept in memory for the rare case after libc's call: that takes one instruction per value, a register would take
  // three.
  volatile const struct {
    epoll_event* events;
    int epoll_fd, count, timeout;
  } kept{events, epoll_fd, count, timeout};
  if (fd_table().holds(epoll_fd)) return at_cancellation_point<&wait_in_set>(epoll_fd, events, count, timeout);
  const int ready = real.epoll_wait(epoll_fd, events, count, timeout);
  if (ready <= 0 || !fd_table().holds(kept.epoll_fd)) [[likely]]
    return ready;
  const int left = KernelMembers::forget_wake_up(kept.events, ready);
  return left > 0 ? left : wait_in_set(kept.epoll_fd, kept.events, kept.count, kept.timeout);
}

RS_INTERCEPT int epoll_pwait(int epoll_fd, epoll_event* events, int count, int timeout, const sigset_t* mask) {
  return epoll_wait_ours(
      epoll_fd, events, [=] { return real.epoll_pwait(epoll_fd, events, count, timeout, mask); },
      [=] { return wait_in_set_masked(epoll_fd, events, count, from_milliseconds(timeout), mask); });
}

RS_INTERCEPT int epoll_pwait2(int epoll_fd, epoll_event* events, int count, const timespec* timeout,
                              const sigset_t* mask) {
  return epoll_wait_ours(
      epoll_fd, events, [=] { return real.epoll_pwait2(epoll_fd, events, count, timeout, mask); },
      [=] {
        if (timeout != nullptr && !are_readable(timeout)) return bad_address();
        return wait_in_set_masked(epoll_fd, events, count, from_timespec(timeout), mask);
      });
}

RS_BY_NUMBER(poll);
RS_BY_NUMBER(ppoll);
RS_BY_NUMBER(select);
RS_BY_NUMBER(pselect);
RS_BY_NUMBER(epoll_create1);
RS_BY_NUMBER(epoll_ctl);
RS_BY_NUMBER(epoll_wait);
RS_BY_NUMBER(epoll_pwait);
RS_BY_NUMBER(epoll_pwait2);
