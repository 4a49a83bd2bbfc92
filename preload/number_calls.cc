// Calls in which the kernel hands out a descriptor number. When the table still has an endpoint under that number, its
// descriptor was closed in a way that the library did not see (a system call instruction of the program's own). The
// number now means a new file, and no longer a socket.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "preload/route.h"

using namespace ringsock;
using namespace ringsock::preload;

namespace {

int fresh(int fd) noexcept {
  drop_stale(fd);
  return fd;
}

int fresh_pair(int answer, const int* fds) noexcept {
  if (answer == 0) {
    fresh(fds[0]);
    fresh(fds[1]);
  }
  return answer;
}

}  // namespace

// The mode is variable, but is passed as a mode_t would be.
#define RS_OPENS(name, parameters, arguments)             \
  RS_INTERCEPT int ringsock_##name parameters asm(#name); \
  RS_INTERCEPT int ringsock_##name parameters { return fresh(real.name arguments); }

RS_OPENS(open, (const char* path, int flags, mode_t mode), (path, flags, mode))
RS_OPENS(open64, (const char* path, int flags, mode_t mode), (path, flags, mode))
RS_OPENS(__open, (const char* path, int flags, mode_t mode), (path, flags, mode))
RS_OPENS(__open64, (const char* path, int flags, mode_t mode), (path, flags, mode))
RS_OPENS(openat, (int directory, const char* path, int flags, mode_t mode), (directory, path, flags, mode))
RS_OPENS(openat64, (int directory, const char* path, int flags, mode_t mode), (directory, path, flags, mode))
RS_OPENS(__open_2, (const char* path, int flags), (path, flags))
RS_OPENS(__open64_2, (const char* path, int flags), (path, flags))
RS_OPENS(__openat_2, (int directory, const char* path, int flags), (directory, path, flags))
RS_OPENS(__openat64_2, (int directory, const char* path, int flags), (directory, path, flags))

RS_INTERCEPT int creat(const char* path, mode_t mode) { return fresh(real.creat(path, mode)); }
RS_INTERCEPT int creat64(const char* path, mode_t mode) { return fresh(real.creat64(path, mode)); }
RS_INTERCEPT int pipe(int fds[2]) noexcept { return fresh_pair(real.pipe(fds), fds); }
RS_INTERCEPT int __pipe(int fds[2]) noexcept { return fresh_pair(real.__pipe(fds), fds); }
RS_INTERCEPT int pipe2(int fds[2], int flags) noexcept { return fresh_pair(real.pipe2(fds, flags), fds); }
RS_INTERCEPT int socketpair(int domain, int type, int protocol, int fds[2]) noexcept {
  return fresh_pair(real.socketpair(domain, type, protocol, fds), fds);
}
RS_INTERCEPT int eventfd(unsigned value, int flags) noexcept { return fresh(real.eventfd(value, flags)); }
RS_INTERCEPT int timerfd_create(clockid_t clock, int flags) noexcept {
  return fresh(real.timerfd_create(clock, flags));
}
RS_INTERCEPT int signalfd(int fd, const sigset_t* mask, int flags) noexcept {
  return fresh(real.signalfd(fd, mask, flags));
}
RS_INTERCEPT int inotify_init() noexcept { return fresh(real.inotify_init()); }
RS_INTERCEPT int inotify_init1(int flags) noexcept { return fresh(real.inotify_init1(flags)); }
RS_INTERCEPT int memfd_create(const char* name, unsigned flags) noexcept {
  return fresh(real.memfd_create(name, flags));
}

/// The kernel's file under a connection on a ring is not the connection: what is read from it is lost to its process.
/// The connection cannot be had without that process, so the answer is that of a caller without the permission.
RS_INTERCEPT int pidfd_getfd(int process, int fd, unsigned flags) noexcept {
  const int copy = fresh(real.pidfd_getfd(process, fd, flags));
  if (copy < 0 || !hand_overs().is_under_connection(copy)) return copy;
  real.close(copy);
  errno = EPERM;
  return -1;
}
RS_BY_NUMBER(pidfd_getfd);
