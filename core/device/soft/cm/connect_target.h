// Which destinations the embedded device reaches: the addresses of this host's network namespace.
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::soft {

/// The address that a connect to `destination` means: canonical, and the wildcard is the loopback address as in Linux.
SocketAddress connect_target(const SocketAddress& destination);

/// Whether `target` (from connect_target()) may be one of ours: a unicast address with a port.
/// Errors: ENETUNREACH multicast or broadcast, ECONNREFUSED port 0.
Status check_unicast(const SocketAddress& target);

/// Whether the kernel takes `target`'s host for an address of this host: bind(2) would not tell, where
/// net.ipv4.ip_nonlocal_bind lets it bind to any.
/// @param network_of  a socket of the network namespace that the address must be of; -1: the calling thread's
/// Errors: EHOSTUNREACH the address is not one of this host's, ENETUNREACH the family is not there.
Status check_local(const SocketAddress& target, int network_of = -1);

/// The same from the error of a bind(2) to the address that failed. Other errors are passed on.
Error explain_unreachable(Error bind_error);

}  // namespace ringsock::soft
