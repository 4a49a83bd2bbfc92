#include "libvmacompat/udp_frame.h"

#include <bit>
#include <cstring>

#include "core/wire/ethernet.h"
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

struct Transport {
  std::uint8_t family;
  std::span<const std::byte> bytes;
};

std::optional<Transport> parse_ip(std::uint16_t type, std::span<const std::byte> packet) {
  if (type == wire::kEtherTypeIpv4) {
    const auto ip = wire::parse_ipv4(packet, false);
    if (!ip || ip->header.protocol != wire::kIpProtocolUdp || ip->header.is_fragment()) return std::nullopt;
    return Transport{AF_INET, ip->payload};
  }
  if (type == wire::kEtherTypeIpv6) {
    const auto ip = wire::parse_ipv6(packet);
    if (!ip || ip->header.next_header != wire::kIpProtocolUdp) return std::nullopt;
    return Transport{AF_INET6, ip->payload};
  }
  return std::nullopt;
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

SocketAddress address_of(std::span<const std::byte> bytes, const UdpFrame& frame, const End& end, int ifindex) {
  const std::uint16_t port = header_at<wire::Be16>(bytes, frame.udp_offset + end.port).host();
  if (frame.family == AF_INET) {
    return SocketAddress::v4(header_at<wire::Be32>(bytes, frame.ip_offset + end.v4_address).host(), port);
  }
  const auto address = header_at<in6_addr>(bytes, frame.ip_offset + end.v6_address);
  const bool has_scope = IN6_IS_ADDR_LINKLOCAL(&address) || IN6_IS_ADDR_MC_LINKLOCAL(&address);
  return SocketAddress::v6(address, port, has_scope ? static_cast<std::uint32_t>(ifindex) : 0);
}

}  // namespace

std::optional<UdpFrame> parse_udp_frame(std::span<const std::byte> frame) {
  const auto ethernet = wire::parse_ethernet(frame);
  if (!ethernet) return std::nullopt;
  const auto transport = parse_ip(ethernet->type, ethernet->payload);
  if (!transport) return std::nullopt;
  const auto udp = wire::parse_udp(transport->bytes);
  if (!udp) return std::nullopt;
  const auto offset = [&](std::span<const std::byte> part) {
    return static_cast<std::uint16_t>(part.data() - frame.data());
  };
  return UdpFrame{.family = transport->family,
                  .ip_offset = offset(ethernet->payload),
                  .udp_offset = offset(udp->whole),
                  .payload_bytes = static_cast<std::uint16_t>(udp->payload.size())};
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

std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.family == AF_INET ? header_at<wire::Ipv4Header>(bytes, frame.ip_offset).ttl
                                 : header_at<wire::Ipv6Header>(bytes, frame.ip_offset).hop_limit;
}

std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame.family == AF_INET ? header_at<wire::Ipv4Header>(bytes, frame.ip_offset).tos
                                 : header_at<wire::Ipv6Header>(bytes, frame.ip_offset).traffic_class();
}

}  // namespace ringsock::vma
