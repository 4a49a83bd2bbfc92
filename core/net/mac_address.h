// Ethernet addresses, and those that follow from IP addresses.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/net/ip_address.h"

namespace ringsock::net {

using MacAddress = std::array<std::uint8_t, 6>;

inline constexpr MacAddress kBroadcastMac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/// Returns the Ethernet destination for a multicast group: 01:00:5e and the low 23 bits of an IPv4 group, 33:33 and the
/// low 32 bits of an IPv6 group. `group` must be an IPv4 or IPv6 address. Source: RFC 1112 section 6.4, RFC 2464
/// section 7.
MacAddress multicast_mac(const IpAddress& group);

/// Returns the text of an address: "02:00:00:00:00:01".
std::string to_string(const MacAddress& mac);

}  // namespace ringsock::net
