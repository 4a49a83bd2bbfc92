// Linked into each of this project's libraries together with -Wl,--wrap=NAME, which leads calls of these names here.
// None of the functions here is a cancellation point (no_cancellation.h).
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <type_traits>

#include "core/base/libc_calls.h"
#include "core/base/no_cancellation.h"

namespace {

struct Nothing {};
/// libc's headers declare all but its cancellation points as functions that throw nothing.
template <bool throws_nothing>
using Hold = std::conditional_t<throws_nothing, Nothing, ringsock::NoCancellation>;

}  // namespace

extern "C" {
#define LIBC_CALL(result, name, parameters, arguments)            \
  [[gnu::visibility("hidden")]] result __wrap_##name parameters;  \
  result __wrap_##name parameters {                               \
    [[maybe_unused]] const Hold<noexcept(::name arguments)> hold; \
    return ringsock::libc_calls.name arguments;                   \
  }
#include "core/base/libc_calls.def"
#undef LIBC_CALL

[[gnu::visibility("hidden")]] int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);  // absent for some commands, which do not use it
  va_end(arguments);
  return ringsock::libc_calls.fcntl(fd, command, argument);
}

// Cancellation points that our preload libraries do not intercept. Calls between libc's own functions, such as
// eventfd_write() calling write(), are not wrapped.
#define UNCANCELLED(result, name, parameters, arguments)         \
  [[gnu::visibility("hidden")]] result __wrap_##name parameters; \
  result __real_##name parameters;                               \
  result __wrap_##name parameters {                              \
    const ringsock::NoCancellation hold;                         \
    return __real_##name arguments;                              \
  }
#include "core/base/libc_uncancelled.def"
#undef UNCANCELLED

// The forms of these functions that code built with _FORTIFY_SOURCE calls. An application's calls of them are
// intercepted, too.
[[noreturn]] void __chk_fail();
[[gnu::visibility("hidden")]] ssize_t __wrap___read_chk(int fd, void* data, size_t length, size_t room);
ssize_t __wrap___read_chk(int fd, void* data, size_t length, size_t room) {
  if (length > room) __chk_fail();
  return __wrap_read(fd, data, length);
}
[[gnu::visibility("hidden")]] ssize_t __wrap___pread_chk(int fd, void* data, size_t length, off_t offset, size_t room);
ssize_t __wrap___pread_chk(int fd, void* data, size_t length, off_t offset, size_t room) {
  if (length > room) __chk_fail();
  return __wrap_pread(fd, data, length, offset);
}
[[gnu::visibility("hidden")]] ssize_t __wrap___recv_chk(int fd, void* data, size_t length, size_t room, int flags);
ssize_t __wrap___recv_chk(int fd, void* data, size_t length, size_t room, int flags) {
  if (length > room) __chk_fail();
  return __wrap_recv(fd, data, length, flags);
}
[[gnu::visibility("hidden")]] int __wrap___poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
int __wrap___poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return __wrap_poll(fds, count, timeout);
}
[[gnu::visibility("hidden")]] int __wrap___ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                                                     const sigset_t* mask, size_t room);
int __wrap___ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return __wrap_ppoll(fds, count, timeout, mask);
}
// Flags that make a file need a mode, which callers of these functions do not pass.
[[gnu::visibility("hidden")]] int __wrap___open_2(const char* path, int flags);
int __wrap___open_2(const char* path, int flags) {
  if (__OPEN_NEEDS_MODE(flags)) __chk_fail();
  return __wrap_open(path, flags, 0);
}
[[gnu::visibility("hidden")]] int __wrap___openat_2(int directory, const char* path, int flags);
int __wrap___openat_2(int directory, const char* path, int flags) {
  if (__OPEN_NEEDS_MODE(flags)) __chk_fail();
  return __wrap_openat(directory, path, flags, 0);
}
}
