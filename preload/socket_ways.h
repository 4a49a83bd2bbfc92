// What may carry a socket beside the kernel, decided in socket(2).
#pragma once

#include "core/runtime/endpoint.h"

namespace ringsock::preload {

struct SocketWay {
  /// Returns whether sockets of this kind may use it. The first call reads the configuration. Threads: any.
  bool (*may_carry)(int domain, int type, int protocol);
  /// Makes an endpoint that has the kernel socket `fd`. Errors: std::bad_alloc. Threads: any.
  runtime::Ref (*make)(int fd, int domain, int type);
};

/// Lets future sockets use `way`. Threads: constructors.
void add_way(const SocketWay& way);
/// Calls add_way() for streams by rsockets. Threads: constructors.
void add_rsockets();

}  // namespace ringsock::preload
