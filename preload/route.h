// The way from a libc call to an endpoint, or on to libc.
#pragma once

#include <cerrno>
#include <cstdint>

#include "core/base/own_numbers.h"
#include "core/base/posix_edge.h"
#include "core/poll/socket_calls.h"
#include "core/poll/timeouts.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/library_call.h"
#include "core/transports/hand_overs.h"
#include "core/transports/rules.h"
#include "preload/cancellation.h"
#include "preload/real_calls.h"

#define RS_INTERCEPT extern "C" __attribute__((visibility("default")))
#ifdef __clang__
#define RS_ATTRIBUTES_OF(name)
#else
#define RS_ATTRIBUTES_OF(name) __attribute__((copy(::name)))
#endif
/// Gives this library's function a second name for syscall(2), because the linker sends calls by the usual name to
/// libc.
#define RS_BY_NUMBER(name)                                                                                           \
  extern "C" RS_ATTRIBUTES_OF(name) decltype(::name) ringsock_##name __attribute__((alias(#name), visibility("hidde" \
                                                                                                             "n")))

namespace ringsock::preload {

using runtime::as_library_call;
using runtime::fd_table;
using runtime::from_milliseconds;
using runtime::from_timespec;
using runtime::LibraryCall;
using runtime::Lookup;
using runtime::OutsideLibrary;
using transports::hand_overs;
using transports::leave_to_kernel;

/// Returns whether the descriptor has become the kernel's, after `error` of a call on `socket`. Moves a connection that
/// another process has used since a fork to the kernel here, too (HandOvers::follow()).
bool goes_on_by_kernel(Lookup& socket, const Error& error);

/// What becomes of a call that has failed.
enum class GoesOn : std::uint8_t {
  nowhere,    ///< the program gets the error
  by_kernel,  ///< the descriptor has become the kernel's
  anew,       ///< what is under the number must be looked up again
};
/// As goes_on_by_kernel(), for a call on the number `fd`. A call that has come while another thread closes the number
/// waits for the end of that, and goes on with what is there then: the same socket where that was dup2(2). A call that
/// another process kept from a connection, which is free by now, goes on there.
GoesOn goes_on(Lookup& socket, const Error& error, int fd);

/// Called before a call asks for what the open file description keeps, and after it has set that: returns whether
/// another process has made the connection the kernel's, so that the kernel's socket has it. The connection becomes the
/// kernel's here, too, and the call answers kAskKernel to go on there.
bool became_kernels_elsewhere(Lookup& socket);
inline constexpr Error kAskKernel{EBADF, "the kernel's by now"};

/// Returns whether a blocking call moved only a part of its bytes because the descriptor became the kernel's meanwhile.
/// The rest then goes by the kernel.
bool rest_goes_on_by_kernel(Lookup& socket, int flags);

/// route_held() once. A call that a handler's SA_RESTART repeats is made by `again()`: a loop around all this would
/// cost each call some fifteen instructions.
template <class Ours, class Libcs, class Again>
[[gnu::always_inline]] inline auto route_once(int fd, Ours ours, Libcs libcs, Again again) {
  decltype(libcs()) answer;
  {
    Lookup socket = fd_table().find(fd);
    if (!socket) return libcs();
    GoesOn next = GoesOn::nowhere;
    answer = static_cast<decltype(answer)>(to_posix([&] {
      auto result = ours(socket);
      if (!result) [[unlikely]]
        next = goes_on(socket, result.error(), fd);
      return result;
    }));
    if (next != GoesOn::nowhere) [[unlikely]] {
      socket.leave();
      runtime::call_ends(false);
      return next == GoesOn::anew ? static_cast<decltype(answer)>(again()) : libcs();
    }
  }
  if (runtime::call_ends(answer == -1)) [[unlikely]]
    return static_cast<decltype(answer)>(again());
  return answer;
}

/// Stands for an `again` that repeats the call in a loop.
struct InLoop {};

/// route() for a descriptor that may be an endpoint.
template <class Ours, class Libcs>
[[gnu::always_inline]] inline auto route_held(int fd, Ours ours, Libcs libcs, InLoop = {}) {
  for (;;) {
    bool is_repeated = false;
    const auto answer = route_once(fd, ours, libcs, [&] {
      is_repeated = true;
      return -1;
    });
    if (!is_repeated) return answer;
  }
}
template <class Ours, class Libcs, class Again>
[[gnu::always_inline]] inline auto route_held(int fd, Ours ours, Libcs libcs, Again again) {
  return route_once(fd, ours, libcs, again);
}

/// Calls `ours(Lookup&)`, which returns a Result, when `fd` is an endpoint, `libcs()` otherwise. For calls that move
/// bytes: an RCU read-side section is held, so `ours` must pin() before it sleeps.
template <class Ours, class Libcs, class Again = InLoop>
[[gnu::always_inline]] inline auto route(int fd, Ours ours, Libcs libcs, Again again = {}) {
  if (!fd_table().holds(fd)) [[likely]]
    return libcs();
  return route_held(fd, ours, libcs, again);
}

/// Removes what the table still has under a number that the kernel has just handed out (FdTable::drop_stale()).
inline void drop_stale(int fd) {
  if (!fd_table().holds(fd)) [[likely]]
    return own_numbers().remove(fd);
  const LibraryCall no_handlers;
  fd_table().drop_stale(fd);
}

inline constexpr Error kBeingClosed{EBADF, "another thread closes the number"};

/// route() for calls that set up or tear down: the endpoint is pinned, and no section is held.
template <class Ours, class Libcs>
inline auto route_pinned(int fd, Ours ours, Libcs libcs) {
  const DeferredCancellation deferred;
  const int errno_before = errno;
  const auto answer = route(
      fd,
      [&](Lookup& socket) {
        socket.pin();
        using Answer = decltype(ours(socket));
        if (runtime::FdTable::is_being_closed(*socket)) [[unlikely]]
          return Answer(kBeingClosed);
        return ours(socket);
      },
      libcs);
  if (answer != -1) errno = errno_before;  // as a system call; programs look at it after calls that have succeeded
  return answer;
}

// These do what the application's calls read(), send() and close() do. They have names of their own, because the linker
// sends this library's calls of those names to libc (libc_calls.h).
ssize_t intercepted_read(int fd, void* data, std::size_t length);
ssize_t intercepted_send(int fd, const void* data, std::size_t length, int flags);
int intercepted_close(int fd);

}  // namespace ringsock::preload
