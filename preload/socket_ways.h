// What may carry a socket beside the kernel, decided in socket(2).
#pragma once

#include <sys/socket.h>

#include "core/runtime/endpoint.h"

namespace ringsock::preload {

struct SocketWay {
  /// Returns whether sockets of this kind may use it. The first call reads the configuration. Threads: any.
  bool (*may_carry)(int domain, int type, int protocol);
  /// Makes an endpoint that has the kernel socket `fd`. Errors: std::bad_alloc. Threads: any.
  runtime::Ref (*make)(int fd, int domain, int type);
  /// Answers getsockopt(2) for the descriptor -1, by which a program asks for what a library offers beside its sockets.
  /// Returns false for options that are not the library's. `value` has room for an int at least. Null: there are none.
  bool (*answer_option)(int level, int name, void* value, socklen_t* length) = nullptr;
  /// Flags of send(2), of kWaysSendFlags, that have a meaning on datagram sockets of this way only. On other sockets a
  /// send with such a flag fails with EINVAL, because nobody else would take notice of the flag.
  int send_flags = 0;
};

/// Flags that a way may claim: those that the kernel ignores.
inline constexpr int kWaysSendFlags = MSG_SYN;
/// Returns whether a way has claimed one of these flags. Threads: any.
bool are_ways_send_flags(int flags) noexcept;
/// Has the way answer whose option it is. Returns false when no way has that option. Threads: any.
bool answer_option(int level, int name, void* value, socklen_t* length);

/// Lets future sockets use `way`. Threads: constructors.
void add_way(const SocketWay& way);
/// Calls add_way() for streams by rsockets. Threads: constructors.
void add_rsockets();

}  // namespace ringsock::preload
