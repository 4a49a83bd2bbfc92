// Finds the kernel socket that a connection to a port would reach, by one question to sock_diag(7), without a dump.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

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

/// A kernel socket, as sock_diag(7) names it.
struct KernelSocket {
  uid_t uid;             ///< of the process that made it
  std::uint64_t cookie;  ///< SO_COOKIE: no other socket has it until the next boot
  bool operator==(const KernelSocket&) const = default;
};
/// Returns the UDP socket that would get a datagram from `source` to `destination` on this host, whether it is
/// connected or not. Takes a few microseconds.
/// @param source, destination  canonical_address(), of one family
/// @param network_of  a socket of the network namespace in question
/// Errors and threads: as for owner_by_kernel().
Result<KernelSocket> udp_socket_by_kernel(const SocketAddress& source, const SocketAddress& destination,
                                          int network_of);
/// Returns SO_COOKIE of a socket, nothing where the kernel has none.
std::optional<std::uint64_t> socket_cookie(int socket);

}  // namespace ringsock::soft
