// Ethernet addresses, and those that follow from IP addresses.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/net/ip_address.h"

namespace ringsock::net {

using MacAddress = std::array<std::uint8_t, 6>;

inline constexpr MacAddress kBroadcastMac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/// Where an Ethernet frame to a multicast group goes: 01:00:5e and the group's low 23 bits, 33:33 and its low 32 bits.
/// `group` must be an IPv4 or IPv6 address. Source: RFC 1112 section 6.4, RFC 2464 section 7.
MacAddress multicast_mac(const IpAddress& group);

/// "02:00:00:00:00:01"
std::string to_string(const MacAddress& mac);

}  // namespace ringsock::net
