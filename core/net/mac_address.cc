#include "core/net/mac_address.h"

#include <bit>
#include <cstdio>

#include "core/wire/ethernet_frame.h"

namespace ringsock::net {

MacAddress multicast_mac(const IpAddress& group) {
  if (group.is_v4()) return wire::multicast_mac(std::bit_cast<wire::Be32>(group.in4()));
  if (group.is_v6()) return wire::multicast_mac(std::bit_cast<std::array<std::uint8_t, 16>>(group.in6()));
  return {};
}

std::string to_string(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return text;
}

}  // namespace ringsock::net
