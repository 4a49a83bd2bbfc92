// RTM_NEWLINK and RTM_DELLINK messages as facts of a link.
#pragma once

#include <linux/netlink.h>
#include <netlink/attr.h>

#include <optional>

#include "core/net/kernel.h"

namespace ringsock::net {

/// Returns a LinkEvent or an Inet6LinkEvent, or nothing for messages of other families, e.g. of a bridge about its
/// ports.
std::optional<KernelEvent> parse_link(const nlmsghdr& message);

/// Returns the Ethernet address in an attribute, or nothing unless it has six bytes.
std::optional<MacAddress> mac_of(const nlattr* attribute);

}  // namespace ringsock::net
