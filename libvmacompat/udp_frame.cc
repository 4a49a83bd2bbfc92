#include "libvmacompat/udp_frame.h"

#include <bit>
#include <cstring>

#include "core/device/soft/packet/packet_parse.h"

namespace ringsock::vma {

using namespace frame_parts;

namespace {

SocketAddress address_of(std::span<const std::byte> bytes, const UdpFrame& frame, const End& end, int ifindex) {
  const std::uint16_t port = header_at<wire::Be16>(bytes, frame.udp_offset + end.port).host();
  if (!frame.is_ipv6)
    return SocketAddress::v4(header_at<wire::Be32>(bytes, frame.ip_offset + end.v4_address).host(), port);
  const auto address = header_at<in6_addr>(bytes, frame.ip_offset + end.v6_address);
  return SocketAddress::v6(address, port, has_scope(address) ? static_cast<std::uint32_t>(ifindex) : 0);
}

}  // namespace

std::optional<UdpFrame> parse_udp_frame(std::span<const std::byte> frame) {
  soft::PacketLayout layout;
  if (!soft::parsing::find_packet(frame, layout) || layout.is_tcp) return std::nullopt;
  return udp_frame_of(layout, udp_payload_bytes(frame, layout));
}

EndName EndName::of(const SocketAddress& address) {
  EndName name;
  name.port = address.port();
  if (address.family() == AF_INET) {
    name.address = mapped(std::bit_cast<wire::Be32>(address.in4().sin_addr.s_addr));
  } else {
    std::memcpy(&name.address, &address.in6().sin6_addr, sizeof name.address);
  }
  return name;
}

SocketAddress source_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex) {
  return address_of(bytes, frame, kSource, ifindex);
}
SocketAddress destination_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex) {
  return address_of(bytes, frame, kDestination, ifindex);
}

std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.is_ipv6 ? header_at<wire::Ipv6Header>(bytes, frame.ip_offset).hop_limit
                       : header_at<wire::Ipv4Header>(bytes, frame.ip_offset).ttl;
}

std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.is_ipv6 ? header_at<wire::Ipv6Header>(bytes, frame.ip_offset).traffic_class()
                       : header_at<wire::Ipv4Header>(bytes, frame.ip_offset).tos;
}

}  // namespace ringsock::vma
