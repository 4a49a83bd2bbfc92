// Tells which destinations the embedded device reaches: the addresses of this host's network namespace.
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::soft {

/// Returns the address to which a connect to `destination` goes, in canonical form: the wildcard becomes the loopback
/// address, as in Linux.
SocketAddress connect_target(const SocketAddress& destination);

/// Checks that `target` (from connect_target()) is a unicast address with a port.
/// Errors: ENETUNREACH multicast or broadcast, ECONNREFUSED port 0.
Status check_unicast(const SocketAddress& target);

/// Checks that the kernel treats `target`'s address as one of this host. bind(2) does not tell where
/// net.ipv4.ip_nonlocal_bind permits any address.
/// @param network_of a socket of the network namespace in question; -1: that of the calling thread
/// Errors: EHOSTUNREACH the address is not one of this host's, ENETUNREACH the family is not there.
Status check_local(const SocketAddress& target, int network_of = -1);

/// Returns the address, with any port, that the kernel gives an unbound socket that connects to `target`, for which
/// check_local() holds: the same address, and 127.0.0.1 for all of 127.0.0.0/8.
SocketAddress source_towards(const SocketAddress& target);

/// Translates the error of a failed bind(2) to the address. Other errors are passed on.
Error explain_unreachable(Error bind_error);

}  // namespace ringsock::soft
