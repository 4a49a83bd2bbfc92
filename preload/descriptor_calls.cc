// Descriptors: closing, duplicating, flags.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/base/user_memory.h"
#include "core/runtime/service_thread.h"
#include "preload/clone_calls.h"
#include "preload/epoll_nesting.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

using runtime::Endpoint;
using runtime::Ref;

/// Out of line, so that calls on files do not pay for its stack frame.
[[gnu::noinline]] int close_ours(int fd) {
  bool was_a_files = false;
  const int answer = as_library_call([&] {
    const Status closed = runtime::close_descriptor(fd, runtime::WaitingCalls::go_on);
    if (!closed) static_cast<void>(fd_table().wait_for_close(fd));  // of another thread
    was_a_files = !closed && closed.error().code == EBADF && !fd_table().holds(fd);
    return to_posix([&] { return closed; });
  });
  return was_a_files ? real.close(fd) : answer;
}

[[gnu::noinline]] int close_high(int fd) {
  if (!own_numbers().holds(fd)) return real.close(fd);
  errno = EBADF;
  return -1;
}

}  // namespace

int intercepted_close(int fd) {
  if (fd_table().holds(fd)) [[unlikely]]
    return at_cancellation_point<&close_ours>(fd);
  if (OwnNumbers::may_hold(fd)) [[unlikely]]
    return close_high(fd);
  return real.close(fd);
}

namespace {

// -- duplicates ------------------------------------------------------------------------------------

void note_keeper(Endpoint& endpoint) {
  if (auto* const way = endpoint.way()) way->keeper.store(::getpid());
}

constexpr bool is_standard_stream(int fd) { return fd >= 0 && fd <= STDERR_FILENO; }

/// Moves a connection that gets the number of a standard stream to the kernel, because libc's streams make system calls
/// that this library does not see. Returns false when that is not possible.
bool becomes_kernels_for_streams(Lookup& socket) {
  if (socket->become_kernels()) return true;
  return hand_overs().is_connection(*socket) && hand_overs().become_kernels(Ref::share(*socket));
}

/// Enters `copy`, which the kernel has made of `original`, as another descriptor of the endpoint. If another thread
/// moves the connection to the kernel meanwhile, `copy` becomes what `original` is then.
Status enter(int copy, const Lookup& socket, int original) {
  Endpoint& endpoint = *socket;
  note_keeper(endpoint);
  if (Status entered = fd_table().insert(copy, Ref::share(endpoint)); !entered) return entered;
  if (!endpoint.has_left_to_kernel()) [[likely]]
    return ok();
  hand_overs().wait_for_moves();
  if (fd_table().get(copy).get() != &endpoint) return ok();  // that thread has found it
  const int flags = (real.fcntl(copy, F_GETFD, 0) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
  fd_table().let_go(copy);
  return real.dup3(original, copy, flags) < 0 ? Status(Error::last("dup")) : ok();
}

/// As enter(), for a number of the kernel's choice.
Result<int> enter_copy(UniqueFd copy, Lookup& socket, int original, int flags) {
  if (is_standard_stream(copy.get()) && becomes_kernels_for_streams(socket)) {
    if (real.dup3(original, copy.get(), flags) < 0) return Error::last("dup");
    return copy.release();
  }
  if (Status entered = enter(copy.get(), socket, original); !entered) return entered.error();
  return copy.release();
}

int dup_ours(int fd) {
  return route_pinned(
      fd,
      [&](Lookup& socket) -> Result<int> {
        UniqueFd copy(real.dup(fd));
        if (!copy) return Error::last("dup");
        return enter_copy(std::move(copy), socket, fd, 0);
      },
      [&] {
        const int copy = real.dup(fd);
        drop_stale(copy);
        note_copy(fd, copy);
        return copy;
      });
}

/// Carries out dup2(2) or dup3(2), as `libcs` does, when one of the descriptors is an endpoint's.
Result<int> dup_to(int from, int to, auto libcs) {
  if (fd_table().holds(from)) static_cast<void>(fd_table().wait_for_close(from));
  Lookup source = fd_table().find(from);
  source.pin();
  if (source && runtime::FdTable::is_being_closed(*source)) return kBeingClosed;
  if (real.fcntl(from, F_GETFD, 0) < 0 || from == to) {
    const int answer = libcs();
    return answer < 0 ? Result<int>(Error::last("dup2")) : Result<int>(answer);
  }
  const bool enters = source && !(is_standard_stream(to) && becomes_kernels_for_streams(source));
  // Close what `to` was. If an endpoint closes its number later by itself, the number is not free, and the kernel's
  // part of dup2() would take it away: so the endpoint gives it up.
  const Ref old = fd_table().begin_close(to);
  if (old) {
    if (old->has_descriptors()) {
      old->descriptor_closed(to);
    } else if (!runtime::Calls::keep(*old, to)) {
      old->retire();
    }
    if (old->owns_descriptor(to)) old->give_up_descriptor();
  }
  const int answer = libcs();
  const int error = errno;
  if (old && (answer < 0 || !enters)) fd_table().end_close(to);
  if (answer < 0) return Error{error, "dup2"};
  if (!enters) {
    note_copy(from, answer);
    return answer;
  }
  if (Status entered = enter(to, source, from); !entered) return entered.error();
  return answer;
}

int dup_to_ours(int from, int to, auto libcs) {
  if (own_numbers().holds(to)) [[unlikely]] {
    errno = EBADF;  // as for a number beyond RLIMIT_NOFILE
    return -1;
  }
  if (!fd_table().holds(from) && !fd_table().holds(to)) [[likely]] {
    const int answer = libcs();
    note_copy(from, answer);
    return answer;
  }
  return as_library_call([&] { return to_posix([&] { return dup_to(from, to, libcs); }); });
}

// -- fcntl and ioctl -------------------------------------------------------------------------------

int status_flags_of(const Lookup& socket) {
  const auto others = static_cast<int>(socket->values.get(runtime::DescriptionValues::other_flags));
  return O_RDWR | others | (socket->is_nonblocking() ? O_NONBLOCK : 0);
}

/// Moves a connection to the kernel, because only the kernel reports events by signals. Returns false when that fails.
bool becomes_kernels_for_signals(Lookup& socket) { return transports::become_kernels(Ref::share(*socket)); }

/// The socket gets an owner, whom the kernel sends SIGURG when urgent data arrives, with or without O_ASYNC. Returns
/// whether the kernel has to carry out the call. A way notes the owner for later, since it has no urgent data.
bool becomes_kernels_for_owner(Lookup& socket) {
  if (transports::Way* const way = socket->way()) {
    way->has_signal_owner.store(true);
    return false;
  }
  return !socket->is_datagram() && becomes_kernels_for_signals(socket);
}

void set_status_flags(Lookup& socket, int flags) {
  if (socket->way() != nullptr)
    socket->values.set(runtime::DescriptionValues::other_flags, flags & (O_APPEND | O_ASYNC));
  if (auto* const chosen = socket->as_chosen_socket()) {
    chosen->set_status_flags(flags);
  } else {
    socket->set_nonblocking((flags & O_NONBLOCK) != 0);
  }
}

Result<int> by_kernel(int fd, int command, long argument) {
  const int answer = real.fcntl(fd, command, argument);
  if (answer < 0) return Error::last("fcntl");
  return answer;
}

Result<int> control(Lookup& socket, int fd, int command, long argument) {
  auto* const chosen = socket->as_chosen_socket();
  transports::Way* const way = socket->way();
  switch (command) {
    case F_GETFL:
      if (way == nullptr) break;
      if (became_kernels_elsewhere(socket)) return kAskKernel;
      return status_flags_of(socket);
    case F_SETFL:
      if (way == nullptr) {  // the kernel's descriptor has the flags, too
        if ((argument & O_ASYNC) != 0 && becomes_kernels_for_signals(socket)) return kAskKernel;
        auto done = by_kernel(fd, command, argument);
        if (done) set_status_flags(socket, static_cast<int>(argument));
        return done;
      }
      if ((argument & O_DIRECT) != 0) return Error{EINVAL, "fcntl: O_DIRECT"};
      if ((argument & O_ASYNC) != 0 && becomes_kernels_for_signals(socket)) break;
      set_status_flags(socket, static_cast<int>(argument));
      if (became_kernels_elsewhere(socket)) return kAskKernel;
      return 0;
    case F_SETOWN:
    case F_SETOWN_EX:
      if (becomes_kernels_for_owner(socket)) return kAskKernel;
      break;
    case F_SETSIG:
      if (way != nullptr) way->has_signal_owner.store(true);
      break;
    case F_GETFD:
      if (way == nullptr || !socket->owns_descriptor(fd)) break;  // a duplicate has the kernel's flag
      return way->close_on_exec.load() ? FD_CLOEXEC : 0;
    case F_SETFD:
      if (way == nullptr) break;
      if ((argument & FD_CLOEXEC) == 0) {
        note_keeper(*socket);
        if (chosen != nullptr) hand_overs().listener_is_prepared(*chosen, fd);
      }
      if (socket->owns_descriptor(fd)) {
        way->close_on_exec.store((argument & FD_CLOEXEC) != 0);
        return 0;
      }
      // For a connection that may take the number over later.
      if (chosen == nullptr || chosen->is_kernel_socket()) way->close_on_exec.store((argument & FD_CLOEXEC) != 0);
      break;
    case F_DUPFD:
    case F_DUPFD_CLOEXEC: {
      UniqueFd copy(real.fcntl(fd, command, argument));
      if (!copy) return Error::last("fcntl");
      return enter_copy(std::move(copy), socket, fd, command == F_DUPFD_CLOEXEC ? O_CLOEXEC : 0);
    }
    default: break;
  }
  return by_kernel(fd, command, argument);
}

int fcntl_ours(int fd, int command, long argument) {
  return route_pinned(
      fd, [&](Lookup& socket) { return control(socket, fd, command, argument); },
      [&] {
        const int answer = real.fcntl(fd, command, argument);
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
          drop_stale(answer);
          note_copy(fd, answer);
        }
        return answer;
      });
}

Result<int> store_int(void* argument, const Result<int>& value) {
  if (!value) return value.error();
  if (!is_writable(argument, sizeof(int))) return Error{EFAULT, "ioctl"};
  *static_cast<int*>(argument) = *value;
  return 0;
}

/// Returns whether an endpoint has answered; otherwise the kernel's socket does.
bool knows(const Result<int>& answer) { return answer || answer.error().code != EOPNOTSUPP; }

Result<int> io_control(Lookup& socket, int fd, unsigned long request, void* argument) {
  transports::Way* const way = socket->way();
  const auto* const chosen = socket->as_chosen_socket();
  const bool on_way = way != nullptr && (chosen == nullptr || !chosen->is_kernel_socket());
  if (way != nullptr && request == FIONBIO) {
    if (!is_readable(argument, sizeof(int))) return Error{EFAULT, "FIONBIO"};
    const bool on = *static_cast<const int*>(argument) != 0;
    const int others = status_flags_of(socket) & ~O_NONBLOCK;
    set_status_flags(socket, others | (on ? O_NONBLOCK : 0));
    if (became_kernels_elsewhere(socket)) return kAskKernel;
    return 0;
  }
  if (way == nullptr && request == FIOASYNC && becomes_kernels_for_signals(socket)) return kAskKernel;
  if (way != nullptr && request == FIOASYNC) {
    if (!is_readable(argument, sizeof(int))) return Error{EFAULT, "FIOASYNC"};
    const bool on = *static_cast<const int*>(argument) != 0;
    if (!on || !becomes_kernels_for_signals(socket)) {
      const int others = status_flags_of(socket) & ~O_ASYNC;
      set_status_flags(socket, others | (on ? O_ASYNC : 0));
      return 0;
    }
  }
  if ((request == FIOSETOWN || request == SIOCSPGRP) && becomes_kernels_for_owner(socket)) return kAskKernel;
  if (way != nullptr && (request == FIOCLEX || request == FIONCLEX)) {
    return control(socket, fd, F_SETFD, request == FIOCLEX ? FD_CLOEXEC : 0);
  }
  if (way == nullptr && socket->as_epoll_set() == nullptr) {
    switch (request) {
      case FIONREAD: return store_int(argument, socket->unread_bytes());
      case TIOCOUTQ:
        if (!socket->is_datagram()) return store_int(argument, socket->unsent_bytes());
        break;
      case SIOCATMARK:
      case SIOCOUTQNSD:
        if (const auto answer = socket->ask(request); knows(answer)) return store_int(argument, answer);
        break;
      case FIONBIO:
        if (is_readable(argument, sizeof(int))) socket->set_nonblocking(*static_cast<const int*>(argument) != 0);
        break;
      default: break;
    }
  }
  if (on_way) {
    switch (request) {
      case FIONREAD: return store_int(argument, socket->unread_bytes());
      case TIOCOUTQ:
      case SIOCOUTQNSD: return store_int(argument, socket->unsent_bytes());
      case SIOCATMARK: return store_int(argument, 0);  // a ring has no urgent data
      case SIOCGSTAMP_OLD:
      case SIOCGSTAMPNS_OLD:
      case SIOCGSTAMP_NEW:
      case SIOCGSTAMPNS_NEW: return Error{ENOENT, "ioctl: no packet had a time"};
      default: break;
    }
  }
  const int answer = real.ioctl(fd, request, argument);
  if (answer < 0) return Error::last("ioctl");
  return answer;
}

// -- ranges ----------------------------------------------------------------------------------------

/// Returns the endpoints' descriptors from `first` to `last`.
std::vector<int> ours_between(unsigned first, unsigned last) {
  const LibraryCall no_handlers;
  std::vector<int> found;
  fd_table().for_each([&](int fd, const Endpoint&) {
    if (static_cast<unsigned>(fd) >= first && static_cast<unsigned>(fd) <= last) found.push_back(fd);
  });
  return found;
}

void close_all_ours(unsigned first, unsigned last) {
  const LibraryCall no_handlers;
  runtime::close_descriptors(ours_between(first, last));
}

/// Carries out close_range(2) in the kernel for all numbers but the library's own.
int close_around_own_numbers(unsigned first, unsigned last, int flags) {
  for (unsigned own = own_numbers().next(first); own < OwnNumbers::kEnd && own <= last;
       own = own_numbers().next(first)) {
    if (own > first && real.close_range(first, own - 1, flags) != 0) return -1;
    if (own == last) return 0;
    first = own + 1;
  }
  return real.close_range(first, last, flags);
}

/// Carries out close_range(2) for endpoints.
void close_endpoints(unsigned first, unsigned last, int flags) {
  const int saved_errno = errno;
  if ((static_cast<unsigned>(flags) & CLOSE_RANGE_CLOEXEC) == 0) {
    close_all_ours(first, last);
  } else {
    for (const int fd : ours_between(first, last)) fcntl_ours(fd, F_SETFD, FD_CLOEXEC);
  }
  errno = saved_errno;
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int close(int fd) { return intercepted_close(fd); }
RS_INTERCEPT int __close(int fd) { return intercepted_close(fd); }

RS_INTERCEPT int close_range(unsigned first, unsigned last, int flags) {
  const auto wanted = static_cast<unsigned>(flags);
  if (first > last || (wanted & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)) != 0) {
    return real.close_range(first, last, flags);  // the kernel reports the error
  }
  const bool unshares = (wanted & CLOSE_RANGE_UNSHARE) != 0;
  if (unshares && !prepare_own_descriptors()) return close_around_own_numbers(first, last, flags);
  close_endpoints(first, last, flags);
  // The library's thread must have the same table.
  std::optional<runtime::WithoutServiceThread> resting;
  if (unshares) resting.emplace();
  return close_around_own_numbers(first, last, flags);
}

RS_INTERCEPT void closefrom(int lowest) {
  const auto first = static_cast<unsigned>(lowest < 0 ? 0 : lowest);
  close_all_ours(first, ~0U);
  const int saved_errno = errno;
  if (close_around_own_numbers(first, ~0U, 0) != 0) real.closefrom(lowest);  // before Linux 5.9
  errno = saved_errno;
}

RS_INTERCEPT int dup(int fd) { return dup_ours(fd); }
RS_INTERCEPT int dup2(int from, int to) {
  return dup_to_ours(from, to, [=] { return real.dup2(from, to); });
}
RS_INTERCEPT int __dup2(int from, int to) {
  return dup_to_ours(from, to, [=] { return real.dup2(from, to); });
}
RS_INTERCEPT int dup3(int from, int to, int flags) {
  return dup_to_ours(from, to, [=] { return real.dup3(from, to, flags); });
}

// The third argument is variable, but is passed as a long would be.
RS_INTERCEPT int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return fcntl_ours(fd, command, argument);
}
RS_INTERCEPT int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));
RS_INTERCEPT int __fcntl(int fd, int command, ...) __attribute__((alias("fcntl")));

RS_INTERCEPT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return route_pinned(
      fd, [&](Lookup& socket) { return io_control(socket, fd, request, argument); },
      [&] { return real.ioctl(fd, request, argument); });
}

RS_INTERCEPT int sockatmark(int fd) noexcept {
  int at_mark = 0;
  return ::ioctl(fd, SIOCATMARK, &at_mark) < 0 ? -1 : at_mark;
}

RS_BY_NUMBER(close);
RS_BY_NUMBER(close_range);
RS_BY_NUMBER(dup);
RS_BY_NUMBER(dup2);
RS_BY_NUMBER(dup3);
RS_BY_NUMBER(fcntl);
RS_BY_NUMBER(ioctl);
