// Tells which addresses belong to this host.
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::net {

/// Returns whether packets to `address` (its port does not matter) would be delivered within this network namespace:
/// loopback, or an address of one of its interfaces. The wildcard is not an address: false. Asks the kernel's routing
/// table unless the address says enough (about 10 us then). Errors: those of netlink, e.g. EMFILE. Threads: any.
Result<bool> is_local_address(const SocketAddress& address);

}  // namespace ringsock::net
