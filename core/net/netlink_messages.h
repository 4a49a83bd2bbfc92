// Translates rtnetlink messages to facts.
#pragma once

#include <linux/netlink.h>
#include <netlink/attr.h>

#include <optional>

#include "core/net/kernel.h"

namespace ringsock::net {

/// Returns the event of a link, address, route, rule, neighbour, nexthop object or setting that was added, changed or
/// removed. Returns nothing for a message of another kind, of another family's tables (e.g. a bridge's), or one that is
/// too short.
std::optional<KernelEvent> parse_event(const nlmsghdr& message);

/// Returns whether it is a rule that names ports, or has attributes that this library does not know.
bool is_rule_on_ports(const nlmsghdr& message);

/// Returns the address in an attribute, or nothing without one or with a wrong length.
IpAddress address_of(int family, const nlattr* attribute);

}  // namespace ringsock::net
