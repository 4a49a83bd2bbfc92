// What the kernel says about who holds which port: sock_diag(7).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/device/soft/cm/port_name.h"

namespace ringsock::soft {

/// A kernel socket that holds a port: listening, or bound and nothing else. For UDP any bound socket.
struct PortHolder {
  PortBinding binding;
  uid_t uid;
};

/// A rsocket's name in the abstract AF_UNIX space.
struct NamedHolder {
  PortName name;
  std::string text;
  uid_t uid;
};

/// Every holder of the port, on any address of this network namespace. Two dumps of the kernel's tables, a few 100 us.
/// Connected sockets are left out: they keep a port from nobody who may have it.
/// Kernels before 6.8 do not list TCP sockets that are merely bound: there a port that is reserved but not listened on
/// has no holder, and callers refuse.
/// Errors: those of the netlink socket, e.g. ENOENT without inet_diag.
Result<std::vector<PortHolder>> kernel_holders(verbs::PortSpace space, std::uint16_t port);

/// The names of a port in use. One dump of all AF_UNIX sockets of the namespace, which anybody may have made many:
/// E2BIG when there are more than `most_sockets`.
Result<std::vector<NamedHolder>> named_holders(verbs::PortSpace space, std::uint16_t port,
                                               std::size_t most_sockets = SIZE_MAX);

}  // namespace ringsock::soft
