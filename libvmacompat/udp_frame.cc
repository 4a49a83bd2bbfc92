#include "libvmacompat/udp_frame.h"

#include <bit>
#include <cstring>

#include "core/device/soft/packet/packet_parse.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::vma {

namespace {

template <class Header>
Header header_at(std::span<const std::byte> bytes, std::size_t offset) {
  Header header;
  std::memcpy(&header, bytes.data() + offset, sizeof header);
  return header;
}

std::array<std::uint64_t, 2> mapped(wire::Be32 address) {
  std::array<std::uint32_t, 4> words{0, 0, std::bit_cast<std::uint32_t>(wire::Be32(0xffff)),
                                     std::bit_cast<std::uint32_t>(address)};
  return std::bit_cast<std::array<std::uint64_t, 2>>(words);
}

/// Which end: its address within the IP header, its port within the UDP header.
struct End {
  std::size_t v4_address, v6_address, port;
};
constexpr End kSource{offsetof(wire::Ipv4Header, source), offsetof(wire::Ipv6Header, source),
                      offsetof(wire::UdpHeader, source_port)};
constexpr End kDestination{offsetof(wire::Ipv4Header, destination), offsetof(wire::Ipv6Header, destination),
                           offsetof(wire::UdpHeader, destination_port)};

EndName name_of(std::span<const std::byte> bytes, const UdpFrame& frame, const End& end) {
  EndName name;
  if (frame.family == AF_INET) {
    name.address = mapped(header_at<wire::Be32>(bytes, frame.ip_offset + end.v4_address));
  } else {
    name.address = header_at<std::array<std::uint64_t, 2>>(bytes, frame.ip_offset + end.v6_address);
  }
  name.port = header_at<wire::Be16>(bytes, frame.udp_offset + end.port).host();
  return name;
}

bool has_scope(const in6_addr& address) {
  return IN6_IS_ADDR_LINKLOCAL(&address) || IN6_IS_ADDR_MC_LINKLOCAL(&address);
}

SocketAddress address_of(std::span<const std::byte> bytes, const UdpFrame& frame, const End& end, int ifindex) {
  const std::uint16_t port = header_at<wire::Be16>(bytes, frame.udp_offset + end.port).host();
  if (frame.family == AF_INET) {
    return SocketAddress::v4(header_at<wire::Be32>(bytes, frame.ip_offset + end.v4_address).host(), port);
  }
  const auto address = header_at<in6_addr>(bytes, frame.ip_offset + end.v6_address);
  return SocketAddress::v6(address, port, has_scope(address) ? static_cast<std::uint32_t>(ifindex) : 0);
}

/// Copies what there is room for, as recvfrom(2) does.
template <class Name>
void copy_name(const Name& name, sockaddr* out, socklen_t& length) {
  if (length >= sizeof name) [[likely]] {
    std::memcpy(out, &name, sizeof name);
  } else {
    std::memcpy(out, &name, length);
  }
  length = sizeof name;
}

}  // namespace

std::optional<UdpFrame> parse_udp_frame(std::span<const std::byte> frame) {
  soft::PacketLayout layout;
  if (!soft::parsing::find_packet(frame, layout) || layout.is_tcp) return std::nullopt;
  const std::size_t bytes = soft::parsing::udp_bytes(frame, layout);
  return UdpFrame{.family = layout.is_ipv6 ? std::uint8_t{AF_INET6} : std::uint8_t{AF_INET},
                  .ip_offset = layout.ip,
                  .udp_offset = layout.transport,
                  .payload_bytes = static_cast<std::uint16_t>(bytes - sizeof(wire::UdpHeader))};
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

EndName source_name(std::span<const std::byte> bytes, const UdpFrame& frame) { return name_of(bytes, frame, kSource); }
EndName destination_name(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return name_of(bytes, frame, kDestination);
}

SocketAddress source_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex) {
  return address_of(bytes, frame, kSource, ifindex);
}
SocketAddress destination_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex) {
  return address_of(bytes, frame, kDestination, ifindex);
}

void copy_source(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex, int domain, sockaddr* out,
                 socklen_t& length) {
  const auto port = header_at<in_port_t>(bytes, frame.udp_offset + kSource.port);
  if (domain == AF_INET) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = port;
    name.sin_addr = header_at<in_addr>(bytes, frame.ip_offset + kSource.v4_address);
    return copy_name(name, out, length);
  }
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_port = port;
  name.sin6_addr = std::bit_cast<in6_addr>(source_name(bytes, frame).address);
  if (has_scope(name.sin6_addr)) name.sin6_scope_id = static_cast<std::uint32_t>(ifindex);
  copy_name(name, out, length);
}

std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.family == AF_INET ? header_at<wire::Ipv4Header>(bytes, frame.ip_offset).ttl
                                 : header_at<wire::Ipv6Header>(bytes, frame.ip_offset).hop_limit;
}

std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.family == AF_INET ? header_at<wire::Ipv4Header>(bytes, frame.ip_offset).tos
                                 : header_at<wire::Ipv6Header>(bytes, frame.ip_offset).traffic_class();
}

}  // namespace ringsock::vma
