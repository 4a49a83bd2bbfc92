// libc's own functions behind those that we define.
#pragma once

#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace ringsock::preload {

/// One member per row of calls.def. Each looks itself up when it is first called, since another library's constructor
/// may call us before ours has run.
struct RealCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the pieces of a declaration
#define LIBC_CALL(result, name, parameters, arguments) result(*name) parameters;
#include "preload/calls.def"
#undef LIBC_CALL
};
/// These are cancellation points where libc's are: for calls that wait for the application, and those that are passed
/// on. What else is done on a descriptor, and may be below a destructor or a noexcept function, goes by the plain name
/// (core/base/no_cancellation.h).
extern RealCalls real;

/// O_NONBLOCK of what the kernel has under `fd`.
void set_kernel_nonblocking(int fd, bool on);

}  // namespace ringsock::preload
