// libc's own functions, whose names this library defines.
#pragma once

#include <aio.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace ringsock::preload {

/// One member per row of calls.def. The first call of any member looks all of them up, because another library's
/// constructor may call before ours has run.
struct RealCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the pieces of a declaration
#define LIBC_CALL(result, name, parameters, arguments) result(*name) parameters;
#include "preload/calls.def"
#undef LIBC_CALL
};
/// These are cancellation points where libc's functions are. They are for calls that wait for the application, and for
/// calls that are passed on. Other operations on a descriptor, which may run in a destructor or a noexcept function,
/// use the plain name (core/base/no_cancellation.h).
extern RealCalls real;

}  // namespace ringsock::preload
