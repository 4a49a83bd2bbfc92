#include "core/wire/frame_ends.h"

#include <bit>
#include <cstring>

namespace ringsock::wire {

using namespace frame_parts;

namespace {

SocketAddress address_of(std::span<const std::byte> bytes, const FrameLayout& layout, const End& end, int ifindex) {
  const std::uint16_t port = read<Be16>(bytes, layout.transport + end.port).host();
  if (!layout.is_ipv6) return SocketAddress::v4(read<Be32>(bytes, layout.ip + end.v4_address).host(), port);
  const auto address = read<in6_addr>(bytes, layout.ip + end.v6_address);
  return SocketAddress::v6(address, port, has_scope(address) ? static_cast<std::uint32_t>(ifindex) : 0);
}

}  // namespace

EndName EndName::of(const SocketAddress& address) {
  EndName name;
  name.port = address.port();
  if (address.family() == AF_INET) {
    name.address = mapped(std::bit_cast<Be32>(address.in4().sin_addr.s_addr));
  } else {
    std::memcpy(&name.address, &address.in6().sin6_addr, sizeof name.address);
  }
  return name;
}

SocketAddress source_of(std::span<const std::byte> bytes, const FrameLayout& layout, int ifindex) {
  return address_of(bytes, layout, kSource, ifindex);
}
SocketAddress destination_of(std::span<const std::byte> bytes, const FrameLayout& layout, int ifindex) {
  return address_of(bytes, layout, kDestination, ifindex);
}

std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const FrameLayout& layout) {
  return layout.is_ipv6 ? read<Ipv6Header>(bytes, layout.ip).hop_limit : read<Ipv4Header>(bytes, layout.ip).ttl;
}

std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const FrameLayout& layout) {
  return layout.is_ipv6 ? read<Ipv6Header>(bytes, layout.ip).traffic_class() : read<Ipv4Header>(bytes, layout.ip).tos;
}

}  // namespace ringsock::wire
