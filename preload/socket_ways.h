// socket(2): which sockets may come to be carried by something else than the kernel.
#pragma once

#include "core/runtime/endpoint.h"

namespace ringsock::preload {

struct SocketWay {
  /// Whether sockets of this kind may take it. The first call reads the configuration. Threads: any.
  bool (*may_carry)(int domain, int type, int protocol);
  /// An endpoint that has the kernel socket `fd`. Errors: std::bad_alloc. Threads: any.
  runtime::Ref (*make)(int fd, int domain, int type);
};

/// Sockets that are made from now on may take `way`. Threads: constructors.
void add_way(const SocketWay& way);
/// The same for streams by rsockets. Threads: constructors.
void add_rsockets();

}  // namespace ringsock::preload
