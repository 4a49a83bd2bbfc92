// Which sockets may use a way, by the rules of preload_config(5) and by what this process does.
#pragma once

#include "core/base/socket_address.h"

namespace ringsock::transports {

/// Returns whether the rules leave sockets of this kind to a way. Called in socket(2), when no address is known yet.
/// Threads: any.
bool permits_socket(int domain, int type, int protocol);
/// Returns whether the rules permit a way for a connection to `address`, or for a listener on it. Threads: any.
bool permits_address(int domain, const SocketAddress& address);
/// The same for datagrams to `address`, or for a UDP socket bound to it.
bool permits_datagrams(int domain, const SocketAddress& address);
/// Returns whether stop_offloading() has not been called.
bool is_offloading();
/// Leaves all future sockets to the kernel, because the library does not see all operations on this process's
/// descriptors. Connections on a way stay there. `why` is logged once.
void stop_offloading(const char* why);
/// Calls stop_offloading(), and also leaves sockets and listeners that are on no way yet to the kernel.
void leave_to_kernel(const char* why) noexcept;

}  // namespace ringsock::transports
