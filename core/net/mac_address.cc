#include "core/net/mac_address.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ringsock::net {

MacAddress multicast_mac(const IpAddress& group) {
  const auto bytes = group.bytes();
  MacAddress mac{};
  if (group.is_v4()) {
    mac = {0x01, 0x00, 0x5e};
    std::memcpy(&mac[3], &bytes[1], 3);
    mac[3] &= 0x7f;
  } else if (group.is_v6()) {
    mac = {0x33, 0x33};
    std::memcpy(&mac[2], &bytes[12], 4);
  }
  return mac;
}

std::string to_string(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return text;
}

}  // namespace ringsock::net
