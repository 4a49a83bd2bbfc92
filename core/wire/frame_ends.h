// The ends of a received packet: addresses and ports. UDP and TCP have the ports at the same place.
#pragma once

#include <sys/socket.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/socket_address.h"
#include "core/wire/frame_parse.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::wire {

/// One end of a packet, in a form that is fast to compare and hash. IPv4 addresses are mapped (RFC 4291, 2.5.5.2).
struct EndName {
  std::array<std::uint64_t, 2> address{};  ///< network order
  std::uint32_t port = 0;                  ///< host order

  static EndName of(const SocketAddress& address);
  friend bool operator==(const EndName& a, const EndName& b) {
    return ((a.address[0] ^ b.address[0]) | (a.address[1] ^ b.address[1]) | (a.port ^ b.port)) == 0;
  }
};

namespace frame_parts {

using parsing::read;

inline std::array<std::uint64_t, 2> mapped(Be32 address) {
  std::array<std::uint32_t, 4> words{0, 0, std::bit_cast<std::uint32_t>(Be32(0xffff)),
                                     std::bit_cast<std::uint32_t>(address)};
  return std::bit_cast<std::array<std::uint64_t, 2>>(words);
}

/// Describes one end: the offsets of its address in the IP header and of its port in the header of UDP or TCP.
struct End {
  std::size_t v4_address, v6_address, port;
};
inline constexpr End kSource{offsetof(Ipv4Header, source), offsetof(Ipv6Header, source),
                             offsetof(UdpHeader, source_port)};
inline constexpr End kDestination{offsetof(Ipv4Header, destination), offsetof(Ipv6Header, destination),
                                  offsetof(UdpHeader, destination_port)};

inline EndName name_of(std::span<const std::byte> bytes, const FrameLayout& layout, const End& end) {
  EndName name;
  if (layout.is_ipv6) {
    name.address = read<std::array<std::uint64_t, 2>>(bytes, layout.ip + end.v6_address);
  } else {
    name.address = mapped(read<Be32>(bytes, layout.ip + end.v4_address));
  }
  name.port = read<Be16>(bytes, layout.transport + end.port).host();
  return name;
}

inline bool has_scope(const in6_addr& address) {
  return IN6_IS_ADDR_LINKLOCAL(&address) || IN6_IS_ADDR_MC_LINKLOCAL(&address);
}

/// Copies as much as there is room for, as recvfrom(2) does.
template <class Name>
void copy_name(const Name& name, sockaddr* out, socklen_t& length) {
  if (length >= sizeof name) [[likely]] {
    std::memcpy(out, &name, sizeof name);
  } else {
    std::memcpy(out, &name, length);
  }
  length = sizeof name;
}

}  // namespace frame_parts

inline EndName source_name(std::span<const std::byte> bytes, const FrameLayout& layout) {
  return frame_parts::name_of(bytes, layout, frame_parts::kSource);
}
inline EndName destination_name(std::span<const std::byte> bytes, const FrameLayout& layout) {
  return frame_parts::name_of(bytes, layout, frame_parts::kDestination);
}

/// Protocol and ends of a packet as they are stored in its headers, for a quick comparison with the next packet.
class EndBytes {
 public:
  EndBytes() = default;
  EndBytes(std::span<const std::byte> headers, const FrameLayout& layout) : kind_(kind_of(layout)) {
    std::memcpy(ports_.data(), headers.data() + layout.transport, kPorts);
    const std::byte* const ip = headers.data() + layout.ip;
    if (layout.is_ipv6) {
      std::memcpy(addresses_.data(), ip + offsetof(Ipv6Header, source), kV6);
    } else {
      std::memcpy(addresses_.data(), ip + offsetof(Ipv4Header, source), kV4);
    }
  }
  [[nodiscard]] bool are_in(std::span<const std::byte> headers, const FrameLayout& layout) const {
    if (kind_ != kind_of(layout)) return false;
    if (std::memcmp(ports_.data(), headers.data() + layout.transport, kPorts) != 0) return false;
    const std::byte* const ip = headers.data() + layout.ip;
    return layout.is_ipv6 ? std::memcmp(addresses_.data(), ip + offsetof(Ipv6Header, source), kV6) == 0
                          : std::memcmp(addresses_.data(), ip + offsetof(Ipv4Header, source), kV4) == 0;
  }

 private:
  // Sizes for both ends.
  static constexpr std::size_t kPorts = 2 * sizeof(Be16), kV4 = 2 * sizeof(Be32), kV6 = 2 * sizeof(Ipv6Address);
  /// Returns version and protocol; never 0, which stands for no packet.
  static std::uint16_t kind_of(const FrameLayout& layout) {
    return static_cast<std::uint16_t>(std::uint16_t{layout.is_ipv6} | layout.protocol << 8);
  }
  std::uint16_t kind_ = 0;
  std::array<std::byte, kPorts> ports_{};
  std::array<std::byte, kV6> addresses_{};
};

/// @param ifindex  scope of a link-local IPv6 address
SocketAddress source_of(std::span<const std::byte> bytes, const FrameLayout& layout, int ifindex);
SocketAddress destination_of(std::span<const std::byte> bytes, const FrameLayout& layout, int ifindex);
/// Writes source_of() as a socket of family `domain` returns it: an AF_INET6 socket gets IPv4 addresses in mapped form.
/// Writes at most `length` bytes, and sets `length` to the full length, as recvfrom(2) does.
[[gnu::always_inline]] inline void copy_source(std::span<const std::byte> bytes, const FrameLayout& layout, int ifindex,
                                               int domain, sockaddr* out, socklen_t& length) {
  using namespace frame_parts;
  const auto port = read<in_port_t>(bytes, layout.transport + kSource.port);
  if (domain == AF_INET) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = port;
    name.sin_addr = read<in_addr>(bytes, layout.ip + kSource.v4_address);
    return copy_name(name, out, length);
  }
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_port = port;
  name.sin6_addr = std::bit_cast<in6_addr>(source_name(bytes, layout).address);
  if (has_scope(name.sin6_addr)) name.sin6_scope_id = static_cast<std::uint32_t>(ifindex);
  copy_name(name, out, length);
}
std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const FrameLayout& layout);
/// Returns the type of service of IPv4 or the traffic class of IPv6.
std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const FrameLayout& layout);

}  // namespace ringsock::wire
