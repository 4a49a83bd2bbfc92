// Whether this process's sockets may leave the kernel.
#pragma once

#include "core/base/socket_address.h"

namespace ringsock::preload {

/// Returns whether a socket of this kind may use a ring. Called in socket(2), when no address is known yet. Threads:
/// any.
bool may_offload(int domain, int type, int protocol);
/// Returns whether a connection to `address`, or a listener on it, may use a ring. Threads: any.
bool may_offload_address(int domain, const SocketAddress& address);
/// Leaves all future sockets to the kernel, because the library does not see all operations on this process's
/// descriptors. Connections on a ring stay there. `why` is logged once.
void stop_offloading(const char* why);

/// Calls stop_offloading(), and also leaves sockets and listeners that are on no ring yet to the kernel.
void leave_to_kernel(const char* why) noexcept;

}  // namespace ringsock::preload
