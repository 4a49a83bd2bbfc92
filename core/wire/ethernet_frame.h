// Ethernet II frames, with or without one 802.1Q tag. Sources: IEEE 802.3, 802.1Q; RFC 1112 6.4, RFC 2464 7.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"

namespace ringsock::wire {

using MacAddress = std::array<std::uint8_t, 6>;
inline constexpr MacAddress kBroadcastMac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/// Returns whether this is a group address; broadcast is one.
constexpr bool is_multicast(const MacAddress& mac) { return (mac[0] & 1) != 0; }

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint16_t kEtherTypeVlan = 0x8100;
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
/// Smaller values of the type field are lengths of IEEE 802.3 frames, which carry no IP.
inline constexpr std::uint16_t kMinEtherType = 0x0600;

struct EthernetHeader {
  MacAddress destination;
  MacAddress source;
  Be16 type;
};
static_assert(sizeof(EthernetHeader) == 14 && alignof(EthernetHeader) == 1);

/// The two fields of a tagged frame that follow kEtherTypeVlan.
struct VlanTag {
  Be16 control;  ///< priority (3 bits), drop eligible (1), VLAN id (12)
  Be16 type;     ///< of the payload
};
static_assert(sizeof(VlanTag) == 4 && alignof(VlanTag) == 1);
inline constexpr std::uint16_t kVlanIdMask = 0x0fff;

/// A received frame. `payload` may be longer than the packet in it, because short frames are padded.
struct EthernetFrame {
  MacAddress destination;
  MacAddress source;
  std::optional<std::uint16_t> vlan_control{};  ///< absent: the frame has no tag
  std::uint16_t type;                           ///< of the payload, behind the tag
  std::span<const std::byte> payload;
};

/// Errors: EPROTO when `frame` is too short for its headers.
inline Result<EthernetFrame> parse_ethernet(std::span<const std::byte> frame) {
  EthernetHeader header;
  if (frame.size() < sizeof header) return Error{EPROTO, "ethernet: short"};
  std::memcpy(&header, frame.data(), sizeof header);
  EthernetFrame out{.destination = header.destination,
                    .source = header.source,
                    .type = header.type.host(),
                    .payload = frame.subspan(sizeof header)};
  if (out.type != kEtherTypeVlan) return out;
  VlanTag tag;
  if (out.payload.size() < sizeof tag) return Error{EPROTO, "ethernet: short tag"};
  std::memcpy(&tag, out.payload.data(), sizeof tag);
  out.vlan_control = tag.control.host();
  out.type = tag.type.host();
  out.payload = out.payload.subspan(sizeof tag);
  return out;
}

/// Returns the group address for IPv4 multicast: 01:00:5e and the low 23 bits of the IP address.
constexpr MacAddress multicast_mac(Be32 ipv4_group) {
  const std::uint32_t group = ipv4_group.host();
  return {0x01,
          0x00,
          0x5e,
          static_cast<std::uint8_t>(group >> 16 & 0x7f),
          static_cast<std::uint8_t>(group >> 8),
          static_cast<std::uint8_t>(group)};
}
/// The same for IPv6: 33:33 and the low 32 bits of the IP address.
constexpr MacAddress multicast_mac(const std::array<std::uint8_t, 16>& ipv6_group) {
  return {0x33, 0x33, ipv6_group[12], ipv6_group[13], ipv6_group[14], ipv6_group[15]};
}

}  // namespace ringsock::wire
