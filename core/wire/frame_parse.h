// The parsers of frame_layout.h as inline functions, for callers that parse each packet. They set `layout`, or return
// false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_layout.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::wire::parsing {

inline constexpr std::size_t kTcpHeaderBytes = 20;
inline constexpr std::size_t kTcpOffsetAt = 12;

/// Returns a header, or a field of a header.
template <class Header>
Header read(std::span<const std::byte> bytes, std::size_t offset) {
  Header out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

/// Returns what find_payload() finds for most packets: UDP in IPv4, not fragmented, without a tag or options.
constexpr FrameLayout plain_udp() {
  FrameLayout out;
  out.ip = sizeof(EthernetHeader);
  out.transport = out.ip + sizeof(Ipv4Header);
  out.payload = out.transport + sizeof(UdpHeader);
  out.protocol = kIpProtocolUdp;
  return out;
}

/// Returns whether it is such a packet, by comparing two words of the headers.
[[gnu::always_inline]] inline bool is_plain_udp(std::span<const std::byte> frame) {
  if (frame.size() < plain_udp().payload) return false;
  // The words are: type, version and header length, with the type of service masked out; fragment and protocol, with
  // the TTL masked out.
  const std::uint32_t kind = read<Be32>(frame, offsetof(EthernetHeader, type)).host();
  const std::uint32_t rest = read<Be32>(frame, plain_udp().ip + offsetof(Ipv4Header, fragment)).host();
  return (kind & 0xffffff00) == (kEtherTypeIpv4 << 16 | 0x4500) && (rest & 0x3fff00ff) == kIpProtocolUdp;
}

/// Sets the beginning and the protocol of the transport header. Returns false when there is no IP header.
[[gnu::always_inline]] inline bool find_transport(std::span<const std::byte> headers, std::uint16_t type,
                                                  FrameLayout& layout) {
  using V4 = Ipv4Header;
  using V6 = Ipv6Header;
  const std::size_t at = layout.ip, left = headers.size() - at;
  std::uint8_t protocol = 0;
  std::size_t bytes = sizeof(V6);
  bool is_fragment = false;
  if (type == kEtherTypeIpv4 && left >= sizeof(V4)) {
    const auto version_and_words = read<std::uint8_t>(headers, at + offsetof(V4, version_and_words));
    bytes = std::size_t{4} * (version_and_words & 0xf);
    protocol = read<std::uint8_t>(headers, at + offsetof(V4, protocol));
    constexpr std::uint16_t kFragment = kIpv4MoreFragments | kIpv4OffsetMask;
    is_fragment = (read<Be16>(headers, at + offsetof(V4, fragment)).host() & kFragment) != 0;
    if (version_and_words >> 4 != 4 || bytes < sizeof(V4) || bytes > left) return false;
  } else if (type == kEtherTypeIpv6 && left >= sizeof(V6)) {
    protocol = read<std::uint8_t>(headers, at + offsetof(V6, next_header));
    layout.is_ipv6 = true;
    if (read<std::uint8_t>(headers, at) >> 4 != 6) return false;
  } else {
    return false;
  }
  const bool has_ports = !is_fragment && (protocol == kIpProtocolTcp || protocol == kIpProtocolUdp);
  layout.protocol = has_ports ? protocol : std::uint8_t{0};
  layout.transport = static_cast<std::uint16_t>(at + bytes);
  return true;
}

/// Implements parse_network().
[[gnu::always_inline]] inline bool find_network(std::span<const std::byte> headers, FrameLayout& layout) {
  if (headers.size() < sizeof(EthernetHeader)) return false;
  std::uint16_t type = read<Be16>(headers, offsetof(EthernetHeader, type)).host();
  layout.ip = sizeof(EthernetHeader);
  if (type == kEtherTypeVlan) {
    if (headers.size() < layout.ip + sizeof(VlanTag)) return false;
    type = read<VlanTag>(headers, layout.ip).type.host();
    layout.ip += sizeof(VlanTag);
  }
  return find_transport(headers, type, layout);
}

/// Implements parse_headers(), except for `end` and `payload_bytes`.
[[gnu::always_inline]] inline bool find_payload(std::span<const std::byte> headers, FrameLayout& layout) {
  if (!find_network(headers, layout) || layout.protocol == 0) return false;
  std::size_t bytes = sizeof(UdpHeader);
  if (layout.is_tcp()) {
    if (headers.size() < layout.transport + kTcpHeaderBytes) return false;
    bytes = std::to_integer<std::size_t>(headers[layout.transport + kTcpOffsetAt] >> 4) * 4;
    if (bytes < kTcpHeaderBytes) return false;
  }
  if (headers.size() < layout.transport + bytes) return false;
  layout.payload = static_cast<std::uint16_t>(layout.transport + bytes);
  return true;
}

/// Sets the ends of packet and payload. Returns false when the lengths in the headers contradict each other or the
/// length of the frame.
[[gnu::always_inline]] inline bool find_end(std::span<const std::byte> frame, FrameLayout& layout) {
  std::size_t end = 0;
  if (layout.is_ipv6) {
    const auto bytes = read<Be16>(frame, layout.ip + offsetof(Ipv6Header, payload_bytes));
    end = layout.transport + std::size_t{bytes.host()};
  } else {
    const auto bytes = read<Be16>(frame, layout.ip + offsetof(Ipv4Header, total_bytes));
    end = layout.ip + std::size_t{bytes.host()};
  }
  layout.end = static_cast<std::uint32_t>(end);
  if (end < layout.payload || end > frame.size()) return false;
  layout.payload_bytes = layout.end - layout.payload;
  if (layout.is_tcp()) return true;
  const std::uint32_t bytes = read<Be16>(frame, layout.transport + offsetof(UdpHeader, bytes)).host();
  if (bytes < sizeof(UdpHeader) || layout.transport + bytes > layout.end) return false;
  layout.payload_bytes = bytes - static_cast<std::uint32_t>(sizeof(UdpHeader));
  return true;
}

/// Implements parse_received(), except for the checksum.
[[gnu::always_inline]] inline bool find_packet(std::span<const std::byte> frame, FrameLayout& layout) {
  return find_payload(frame, layout) && find_end(frame, layout);
}

/// Returns the sum of the IPv4 header with its options.
inline InternetSum ipv4_header_sum(std::span<const std::byte> headers, const FrameLayout& layout) {
  const std::size_t bytes = layout.transport - std::size_t{layout.ip};
  if (bytes == sizeof(Ipv4Header)) [[likely]]
    return InternetSum().add_fixed<sizeof(Ipv4Header)>(headers.data() + layout.ip);
  return InternetSum().add(headers.subspan(layout.ip, bytes));
}

}  // namespace ringsock::wire::parsing
