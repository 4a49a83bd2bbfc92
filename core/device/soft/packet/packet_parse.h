// The parsers of packet_layout.h as part of whoever calls them for each packet: each sets `layout`, or says no.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/device/soft/packet/packet_layout.h"
#include "core/wire/ethernet.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::soft::parsing {

inline constexpr std::size_t kTcpHeaderBytes = 20;
inline constexpr std::size_t kTcpOffsetAt = 12;

/// A header, or a field of one.
template <class Header>
Header read(std::span<const std::byte> bytes, std::size_t offset) {
  Header out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

/// What find_payload() says of most packets: UDP in IPv4, not a fragment, without a tag or options.
constexpr PacketLayout plain_udp() {
  PacketLayout out;
  out.ip = sizeof(wire::EthernetHeader);
  out.transport = out.ip + sizeof(wire::Ipv4Header);
  out.payload = out.transport + sizeof(wire::UdpHeader);
  out.has_transport = true;
  return out;
}

/// Whether it is one of those, by two words of the headers.
[[gnu::always_inline]] inline bool is_plain_udp(std::span<const std::byte> frame) {
  if (frame.size() < plain_udp().payload) return false;
  // Type, version and header length, but for the type of service; fragment and protocol, but for the hops.
  const std::uint32_t kind = read<wire::Be32>(frame, offsetof(wire::EthernetHeader, type)).host();
  const std::uint32_t rest = read<wire::Be32>(frame, plain_udp().ip + offsetof(wire::Ipv4Header, fragment)).host();
  return (kind & 0xffffff00) == (wire::kEtherTypeIpv4 << 16 | 0x4500) && (rest & 0x3fff00ff) == wire::kIpProtocolUdp;
}

/// Sets where the transport header begins and which it is. False: no IP header.
[[gnu::always_inline]] inline bool find_transport(std::span<const std::byte> headers, std::uint16_t type,
                                                  PacketLayout& layout) {
  using V4 = wire::Ipv4Header;
  using V6 = wire::Ipv6Header;
  const std::size_t at = layout.ip, left = headers.size() - at;
  std::uint8_t protocol = 0;
  std::size_t bytes = sizeof(V6);
  bool is_fragment = false;
  if (type == wire::kEtherTypeIpv4 && left >= sizeof(V4)) {
    const auto version_and_words = read<std::uint8_t>(headers, at + offsetof(V4, version_and_words));
    bytes = std::size_t{4} * (version_and_words & 0xf);
    protocol = read<std::uint8_t>(headers, at + offsetof(V4, protocol));
    constexpr std::uint16_t kFragment = wire::kIpv4MoreFragments | wire::kIpv4OffsetMask;
    is_fragment = (read<wire::Be16>(headers, at + offsetof(V4, fragment)).host() & kFragment) != 0;
    if (version_and_words >> 4 != 4 || bytes < sizeof(V4) || bytes > left) return false;
  } else if (type == wire::kEtherTypeIpv6 && left >= sizeof(V6)) {
    protocol = read<std::uint8_t>(headers, at + offsetof(V6, next_header));
    layout.is_ipv6 = true;
    if (read<std::uint8_t>(headers, at) >> 4 != 6) return false;
  } else {
    return false;
  }
  layout.is_tcp = protocol == wire::kIpProtocolTcp;
  layout.has_transport = !is_fragment && (layout.is_tcp || protocol == wire::kIpProtocolUdp);
  layout.transport = static_cast<std::uint16_t>(at + bytes);
  return true;
}

/// parse_network().
[[gnu::always_inline]] inline bool find_network(std::span<const std::byte> headers, PacketLayout& layout) {
  if (headers.size() < sizeof(wire::EthernetHeader)) return false;
  std::uint16_t type = read<wire::Be16>(headers, offsetof(wire::EthernetHeader, type)).host();
  layout.ip = sizeof(wire::EthernetHeader);
  if (type == wire::kEtherTypeVlan) {
    if (headers.size() < layout.ip + sizeof(wire::VlanTag)) return false;
    type = read<wire::VlanTag>(headers, layout.ip).type.host();
    layout.ip += sizeof(wire::VlanTag);
  }
  return find_transport(headers, type, layout);
}

/// parse_headers(), but for `end`.
[[gnu::always_inline]] inline bool find_payload(std::span<const std::byte> headers, PacketLayout& layout) {
  if (!find_network(headers, layout) || !layout.has_transport) return false;
  std::size_t bytes = sizeof(wire::UdpHeader);
  if (layout.is_tcp) {
    if (headers.size() < layout.transport + kTcpHeaderBytes) return false;
    bytes = std::to_integer<std::size_t>(headers[layout.transport + kTcpOffsetAt] >> 4) * 4;
    if (bytes < kTcpHeaderBytes) return false;
  }
  if (headers.size() < layout.transport + bytes) return false;
  layout.payload = static_cast<std::uint16_t>(layout.transport + bytes);
  return true;
}

inline std::size_t udp_bytes(std::span<const std::byte> frame, const PacketLayout& layout) {
  return read<wire::Be16>(frame, layout.transport + offsetof(wire::UdpHeader, bytes)).host();
}

/// Sets where the packet ends. False: the lengths in its headers contradict each other or the frame's.
[[gnu::always_inline]] inline bool find_end(std::span<const std::byte> frame, PacketLayout& layout) {
  std::size_t end = 0;
  if (layout.is_ipv6) {
    const auto bytes = read<wire::Be16>(frame, layout.ip + offsetof(wire::Ipv6Header, payload_bytes));
    end = layout.transport + std::size_t{bytes.host()};
  } else {
    const auto bytes = read<wire::Be16>(frame, layout.ip + offsetof(wire::Ipv4Header, total_bytes));
    end = layout.ip + std::size_t{bytes.host()};
  }
  layout.end = static_cast<std::uint32_t>(end);
  if (end < layout.payload || end > frame.size()) return false;
  if (layout.is_tcp) return true;
  const std::size_t bytes = udp_bytes(frame, layout);
  return bytes >= sizeof(wire::UdpHeader) && layout.transport + bytes <= end;
}

/// parse_received(), but for the checksum.
[[gnu::always_inline]] inline bool find_packet(std::span<const std::byte> frame, PacketLayout& layout) {
  return find_payload(frame, layout) && find_end(frame, layout);
}

/// The sum of the header of IPv4, with its options.
inline wire::InternetSum ipv4_header_sum(std::span<const std::byte> headers, const PacketLayout& layout) {
  const std::size_t bytes = layout.transport - std::size_t{layout.ip};
  if (bytes == sizeof(wire::Ipv4Header)) [[likely]]
    return wire::InternetSum().add_fixed<sizeof(wire::Ipv4Header)>(headers.data() + layout.ip);
  return wire::InternetSum().add(headers.subspan(layout.ip, bytes));
}

}  // namespace ringsock::soft::parsing
