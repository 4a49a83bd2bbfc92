// Asks the kernel which sockets hold a port: sock_diag(7).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

/// A kernel socket that holds a port: listening or only bound, for UDP any bound socket.
struct PortHolder {
  PortBinding binding;
  uid_t uid;
};

/// An rsocket's name in the abstract AF_UNIX space.
struct NamedHolder {
  PortName name;
  std::string text;
  uid_t uid;
};

/// Returns every holder of the port on any address of this network namespace. Dumps two tables of the kernel, which
/// takes a few 100 us. Connected sockets are left out, because they do not prevent others from using the port. Kernels
/// before 6.8 do not list TCP sockets that are only bound: a reserved port without a listener has no holder there, and
/// callers refuse.
/// Errors: those of the netlink socket, e.g. ENOENT without inet_diag.
Result<std::vector<PortHolder>> kernel_holders(verbs::PortSpace space, std::uint16_t port);

/// Returns the user of the UDP socket that gets packets from `remote` to `local`, whether it is connected or not. Looks
/// up one socket. Errors: ENOENT there is none; those of the netlink socket.
Result<uid_t> udp_port_owner(const SocketAddress& local, const SocketAddress& remote);

/// Returns the names of a port in use. Dumps all AF_UNIX sockets of the namespace, of which any user can make many.
/// Error: E2BIG when there are more than `most_sockets`.
Result<std::vector<NamedHolder>> named_holders(verbs::PortSpace space, std::uint16_t port,
                                               std::size_t most_sockets = SIZE_MAX);

}  // namespace ringsock::soft
