// Finds the kernel socket that a connection to a port would reach, by one question to sock_diag(7), without a dump.
#pragma once

#include <sys/types.h>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

/// Returns whether both sockets belong to one network namespace. True where the kernel does not tell (before Linux
/// 5.14).
bool share_network(int socket, int other);

/// Returns the owner of the kernel socket that a connection (PortSpace::udp: a datagram) from this host to
/// `destination` would reach: of a listener, whatever its bound address, or for UDP of any bound socket. Takes a few
/// microseconds.
/// @param destination  canonical_address()
/// @param network_of   a socket of the network namespace in question
/// Errors: ENOENT there is none. EOPNOTSUPP the kernel cannot be asked: no sock_diag for that protocol, no netlink
/// sockets, another network namespace than the calling thread's.
/// Threads: any; none waits for another.
Result<uid_t> owner_by_kernel(verbs::PortSpace space, const SocketAddress& destination, int network_of);

}  // namespace ringsock::soft
