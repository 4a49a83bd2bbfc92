// Finds the source address of a route.
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::net {

/// Returns the source address that the kernel would use towards `destination` now, with port 0. For an address of this
/// host that is the address itself. Sends nothing. Errors: those of connect(2) on a UDP socket, e.g. ENETUNREACH;
/// EMFILE. Threads: any.
Result<SocketAddress> source_address(const SocketAddress& destination);

}  // namespace ringsock::net
