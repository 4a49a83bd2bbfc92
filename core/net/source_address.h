// Which of this host's addresses the route to another one starts at.
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::net {

/// The source address that the kernel would use towards `destination` now, port 0; an address of this host is its own.
/// Nothing is sent. Errors: those of connect(2) on a UDP socket, e.g. ENETUNREACH; EMFILE. Threads: any.
Result<SocketAddress> source_address(const SocketAddress& destination);

}  // namespace ringsock::net
