#include "preload/system_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "core/base/no_cancellation.h"
#include "core/base/own_numbers.h"
#include "core/base/user_memory.h"
#include "core/runtime/service_thread.h"
#include "preload/any_ours.h"
#include "preload/child_calls.h"
#include "preload/credential_calls.h"
#include "preload/process_ends.h"
#include "preload/route.h"
#include "preload/signal_calls.h"

// The functions that RS_BY_NUMBER(name) has named, so that the linker does not replace them by libc's.
extern "C" {
#define OURS(result, name, parameters) result ringsock_##name parameters
OURS(int, socket, (int, int, int));
OURS(int, bind, (int, const sockaddr*, socklen_t));
OURS(int, listen, (int, int));
OURS(int, accept, (int, sockaddr*, socklen_t*));
OURS(int, accept4, (int, sockaddr*, socklen_t*, int));
OURS(int, connect, (int, const sockaddr*, socklen_t));
OURS(int, shutdown, (int, int));
OURS(int, getsockname, (int, sockaddr*, socklen_t*));
OURS(int, getpeername, (int, sockaddr*, socklen_t*));
OURS(int, setsockopt, (int, int, int, const void*, socklen_t));
OURS(int, getsockopt, (int, int, int, void*, socklen_t*));
OURS(ssize_t, read, (int, void*, std::size_t));
OURS(ssize_t, readv, (int, const iovec*, int));
OURS(ssize_t, preadv2, (int, const iovec*, int, off_t, int));
OURS(ssize_t, recvfrom, (int, void*, std::size_t, int, sockaddr*, socklen_t*));
OURS(ssize_t, recvmsg, (int, msghdr*, int));
OURS(int, recvmmsg, (int, mmsghdr*, unsigned, int, timespec*));
OURS(ssize_t, write, (int, const void*, std::size_t));
OURS(ssize_t, writev, (int, const iovec*, int));
OURS(ssize_t, pwritev2, (int, const iovec*, int, off_t, int));
OURS(ssize_t, sendto, (int, const void*, std::size_t, int, const sockaddr*, socklen_t));
OURS(ssize_t, sendmsg, (int, const msghdr*, int));
OURS(int, sendmmsg, (int, mmsghdr*, unsigned, int));
OURS(ssize_t, sendfile, (int, int, off_t*, std::size_t));
OURS(ssize_t, splice, (int, off_t*, int, off_t*, std::size_t, unsigned));
OURS(int, close, (int));
OURS(int, close_range, (unsigned, unsigned, int));
OURS(int, dup, (int));
OURS(int, dup2, (int, int));
OURS(int, dup3, (int, int, int));
OURS(int, fcntl, (int, int, ...));
OURS(int, ioctl, (int, unsigned long, ...));
OURS(int, pidfd_getfd, (int, int, unsigned));
OURS(int, poll, (pollfd*, nfds_t, int));
OURS(int, ppoll, (pollfd*, nfds_t, const timespec*, const sigset_t*));
OURS(int, select, (int, fd_set*, fd_set*, fd_set*, timeval*));
OURS(int, pselect, (int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*));
OURS(int, epoll_create1, (int));
OURS(int, epoll_ctl, (int, int, int, epoll_event*));
OURS(int, epoll_wait, (int, epoll_event*, int, int));
OURS(int, epoll_pwait, (int, epoll_event*, int, int, const sigset_t*));
OURS(int, epoll_pwait2, (int, epoll_event*, int, const timespec*, const sigset_t*));
#undef OURS
}

namespace ringsock::preload {
namespace {

using Words = std::array<long, 6>;

template <class To>
To word_as(long word) {
  if constexpr (std::is_pointer_v<To>) {
    return reinterpret_cast<To>(word);
  } else {
    return static_cast<To>(word);
  }
}

// syscall(2) is no cancellation point, and throws nothing, so cancellation is off while the functions below call ours.

template <class Result, class... Arguments>
long call(Result (*ours)(Arguments...), const Words& words) {
  const NoCancellation hold;
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return static_cast<long>(ours(word_as<Arguments>(words[i])...));
  }
  (std::index_sequence_for<Arguments...>{});
}

bool holds(long fd) { return fd_table().holds(static_cast<int>(fd)); }
/// The same, or the library keeps a descriptor of its own there.
bool is_taken(long fd) { return holds(fd) || own_numbers().holds(static_cast<int>(fd)); }

/// The kernel's signal set has as many bits as there are signals; libc's sigset_t is longer.
constexpr std::size_t kKernelSetBytes = 8;

/// The signal mask that a system call gets as an address and a size, as a sigset_t.
class Mask {
 public:
  Mask(long place, long bytes) : bytes_(bytes) {
    if (place == 0) return;
    sigemptyset(&set_);
    is_there_ = true;
    is_readable_ = is_readable(reinterpret_cast<const void*>(place), kKernelSetBytes);
    if (is_valid() && is_readable_) std::copy_n(reinterpret_cast<const std::byte*>(place), kKernelSetBytes, as_bytes());
  }
  [[nodiscard]] bool is_valid() const { return !is_there_ || static_cast<std::size_t>(bytes_) == kKernelSetBytes; }
  [[nodiscard]] int error() const { return !is_valid() ? EINVAL : is_readable_ ? 0 : EFAULT; }
  [[nodiscard]] const sigset_t* get() const { return is_there_ ? &set_ : nullptr; }

 private:
  std::byte* as_bytes() { return reinterpret_cast<std::byte*>(&set_); }
  sigset_t set_{};
  long bytes_;
  bool is_there_ = false;
  bool is_readable_ = true;
};

template <class Call>
long with_mask(long place, long bytes, Call ours) {
  const NoCancellation hold;
  const Mask mask(place, bytes);
  if (mask.error() == 0) return ours(mask.get());
  errno = mask.error();
  return -1;
}

/// Copies the time, because the system calls store the time left and the functions do not. Returns nothing when it
/// cannot be read.
std::optional<timespec> copy_of(const timespec* time) {
  if (time == nullptr) return timespec{};
  return are_readable(time) ? std::optional(*time) : std::nullopt;
}

long bad_address() {
  errno = EFAULT;
  return -1;
}

long by_ppoll(const Words& words) {
  const auto* const timeout = word_as<const timespec*>(words[2]);
  const auto copy = copy_of(timeout);
  if (!copy) return bad_address();
  return with_mask(words[3], words[4], [&](const sigset_t* mask) {
    return ringsock_ppoll(word_as<pollfd*>(words[0]), word_as<nfds_t>(words[1]), timeout != nullptr ? &*copy : nullptr,
                          mask);
  });
}

long by_pselect(const Words& words) {
  const auto* const timeout = word_as<const timespec*>(words[4]);
  const auto copy = copy_of(timeout);
  if (!copy) return bad_address();
  const auto* const place_and_size = word_as<const std::array<long, 2>*>(words[5]);
  if (place_and_size != nullptr && !are_readable(place_and_size)) return bad_address();
  const auto [place, bytes] = place_and_size != nullptr ? *place_and_size : std::array<long, 2>{};
  return with_mask(place, bytes, [&](const sigset_t* mask) {
    return ringsock_pselect(word_as<int>(words[0]), word_as<fd_set*>(words[1]), word_as<fd_set*>(words[2]),
                            word_as<fd_set*>(words[3]), timeout != nullptr ? &*copy : nullptr, mask);
  });
}

long by_epoll_pwait(const Words& words) {
  return with_mask(words[4], words[5], [&](const sigset_t* mask) {
    return ringsock_epoll_pwait(word_as<int>(words[0]), word_as<epoll_event*>(words[1]), word_as<int>(words[2]),
                                word_as<int>(words[3]), mask);
  });
}

long by_epoll_pwait2(const Words& words) {
  return with_mask(words[4], words[5], [&](const sigset_t* mask) {
    return ringsock_epoll_pwait2(word_as<int>(words[0]), word_as<epoll_event*>(words[1]), word_as<int>(words[2]),
                                 word_as<const timespec*>(words[3]), mask);
  });
}

/// The offset takes two words; on a 64-bit machine only the first is used.
long by_v2(ssize_t (*ours)(int, const iovec*, int, off_t, int), const Words& words) {
  const NoCancellation hold;
  return ours(word_as<int>(words[0]), word_as<const iovec*>(words[1]), word_as<int>(words[2]), words[3],
              word_as<int>(words[5]));
}

bool any_ours_in_sets(const Words& words) {
  return any_ours(word_as<int>(words[0]), word_as<const fd_set*>(words[1]), word_as<const fd_set*>(words[2]),
                  word_as<const fd_set*>(words[3]));
}

/// Carries out the calls that take lists of descriptors, when one is an endpoint's. Returns nothing when the kernel is
/// to carry the call out.
std::optional<long> of_sets(long number, const Words& words) {
  switch (number) {
#ifdef SYS_poll
    case SYS_poll:
      if (!any_ours(word_as<const pollfd*>(words[0]), word_as<nfds_t>(words[1]))) break;
      return call(ringsock_poll, words);
#endif
    case SYS_ppoll:
      if (!any_ours(word_as<const pollfd*>(words[0]), word_as<nfds_t>(words[1]))) break;
      return by_ppoll(words);
#ifdef SYS_select
    case SYS_select:
      if (!any_ours_in_sets(words)) break;
      return call(ringsock_select, words);
#endif
    case SYS_pselect6:
      if (!any_ours_in_sets(words)) break;
      return by_pselect(words);
    default: break;
  }
  return std::nullopt;
}

}  // namespace

#define IF_HELD(name, held)                        \
  case SYS_##name:                                 \
    if (held) return call(ringsock_##name, words); \
    break
#define ALWAYS(name) IF_HELD(name, true)
#define ON_FIRST(name) IF_HELD(name, holds(words[0]))

// NOLINTNEXTLINE(readability-function-size): a table
std::optional<long> carry_system_call(long number, const Words& words) {
  switch (number) {
    ALWAYS(socket);
    ALWAYS(close_range);
    ALWAYS(epoll_create1);
    ALWAYS(pidfd_getfd);
    ALWAYS(sendmsg);   // descriptors of endpoints may be passed by any socket
    ALWAYS(sendmmsg);  // the same
    ON_FIRST(bind);
    ON_FIRST(listen);
    ON_FIRST(accept);
    ON_FIRST(accept4);
    ON_FIRST(connect);
    ON_FIRST(shutdown);
    ON_FIRST(getsockname);
    ON_FIRST(getpeername);
    ON_FIRST(setsockopt);
    ON_FIRST(getsockopt);
    ON_FIRST(read);
    ON_FIRST(readv);
    ON_FIRST(recvfrom);
    ON_FIRST(recvmsg);
    ON_FIRST(recvmmsg);
    ON_FIRST(write);
    ON_FIRST(writev);
    ON_FIRST(sendto);
    IF_HELD(close, is_taken(words[0]));
    ON_FIRST(dup);
    IF_HELD(dup3, holds(words[0]) || is_taken(words[1]));
    IF_HELD(sendfile, holds(words[0]) || holds(words[1]));
    IF_HELD(splice, holds(words[0]) || holds(words[2]));
    IF_HELD(epoll_ctl, holds(words[0]) || holds(words[2]));
#ifdef SYS_dup2
    IF_HELD(dup2, holds(words[0]) || is_taken(words[1]));
#endif
#ifdef SYS_epoll_create
    case SYS_epoll_create:
      return word_as<int>(words[0]) > 0 ? std::optional<long>(ringsock_epoll_create1(0)) : std::nullopt;
#endif
#ifdef SYS_epoll_wait
      ON_FIRST(epoll_wait);
#endif
    case SYS_preadv2: return holds(words[0]) ? std::optional(by_v2(ringsock_preadv2, words)) : std::nullopt;
    case SYS_pwritev2: return holds(words[0]) ? std::optional(by_v2(ringsock_pwritev2, words)) : std::nullopt;
    case SYS_epoll_pwait: return holds(words[0]) ? std::optional(by_epoll_pwait(words)) : std::nullopt;
    case SYS_epoll_pwait2: return holds(words[0]) ? std::optional(by_epoll_pwait2(words)) : std::nullopt;
    case SYS_rt_sigaction: return sigaction_by_number(words);
    case SYS_exit: runtime::service_thread().main_thread_ends(runtime::MainThreadEnd::by_system_call); break;
    case SYS_exit_group: process_ends_at_once(); break;
    case SYS_wait4: return wait4_by_number(words);
    case SYS_waitid: return waitid_by_number(words);
    case SYS_capset: return capset_by_number(words);
    case SYS_fcntl:
      if (!holds(words[0])) break;
      return ringsock_fcntl(word_as<int>(words[0]), word_as<int>(words[1]), words[2]);
    case SYS_ioctl:
      if (!holds(words[0])) break;
      return ringsock_ioctl(word_as<int>(words[0]), word_as<unsigned long>(words[1]), word_as<void*>(words[2]));
    default: return of_sets(number, words);
  }
  return std::nullopt;
}

}  // namespace ringsock::preload
