// libc's functions on descriptors and processes, as the core calls them.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <csignal>
#include <ctime>

namespace ringsock {

/// The targets of the core's own libc calls. A preload library defines functions of these names for the application.
/// The core's calls on the same descriptors (a link's socket has the number that the application knows) must not reach
/// those functions. So the linker sends the core's calls here (-Wl,--wrap, libc_wraps.cc), and the preload library
/// stores libc's functions here before anything else happens. Without a preload library these are libc's functions from
/// the start. fcntl() stands apart, because its third argument is variable.
struct LibcCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the pieces of a declaration
#define LIBC_CALL(result, name, parameters, arguments) result(*name) parameters;
#include "core/base/libc_calls.def"
#undef LIBC_CALL
  int (*fcntl)(int fd, int command, ...);
};
extern LibcCalls libc_calls;

}  // namespace ringsock
