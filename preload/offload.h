// Whether this process's sockets may leave the kernel.
#pragma once

#include "core/base/socket_address.h"

namespace ringsock::preload {

/// Whether a socket of this kind may come to be carried by a ring: asked at socket(2), when no address is known yet.
/// Threads: any.
bool may_offload(int domain, int type, int protocol);
/// Whether a connection to `address`, or a listener on it, may be. Threads: any.
bool may_offload_address(int domain, const SocketAddress& address);
/// From now on all new sockets stay with the kernel: this process uses its descriptors in ways that we do not see.
/// Connections that are on a ring stay there. `why` is logged once.
void stop_offloading(const char* why);

/// The same, and what is on no ring yet goes back to the kernel: sockets, listeners.
void leave_to_kernel(const char* why) noexcept;

}  // namespace ringsock::preload
