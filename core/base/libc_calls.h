// libc's functions on descriptors, as the core calls them.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <csignal>
#include <ctime>

namespace ringsock {

/// Where the core's own calls go. A preload library defines functions of these names for the application; the core's
/// calls on the same descriptors (a link's socket has the number that the application knows) must not come back to it.
/// So the linker is told to send the core's calls here (-Wl,--wrap, libc_wraps.cc), and the preload library puts libc's
/// own functions in before anything else happens. Without one these are libc's anyway.
/// fcntl() stands apart, because its third argument is variable.
struct LibcCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the pieces of a declaration
#define LIBC_CALL(result, name, parameters, arguments) result(*name) parameters;
#include "core/base/libc_calls.def"
#undef LIBC_CALL
  int (*fcntl)(int fd, int command, ...);
};
extern LibcCalls libc_calls;

}  // namespace ringsock
