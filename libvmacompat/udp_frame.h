// Where things are in a received frame that holds a UDP datagram.
#pragma once

#include <sys/socket.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "core/base/socket_address.h"
#include "core/device/soft/packet/packet_parse.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::vma {

/// Offsets from the frame's first byte. A value that stands beside the frame's buffer.
struct UdpFrame {
  std::uint16_t ip_offset = 0;   ///< of the IP header
  std::uint16_t udp_offset = 0;  ///< of the UDP header
  std::uint16_t payload_bytes = 0;
  bool is_ipv6 = false;

  [[nodiscard]] std::size_t payload_offset() const { return udp_offset + std::size_t{8}; }
};

/// Nothing when it is none: not UDP, a fragment, an extension header, or lengths that contradict each other or the
/// frame's. Checksums are the device's business.
std::optional<UdpFrame> parse_udp_frame(std::span<const std::byte> frame);

/// Of a UDP packet whose lengths are known to be right.
inline std::size_t udp_payload_bytes(std::span<const std::byte> headers, const soft::PacketLayout& layout) {
  return soft::parsing::udp_bytes(headers, layout) - sizeof(wire::UdpHeader);
}
inline UdpFrame udp_frame_of(const soft::PacketLayout& layout, std::size_t payload_bytes) {
  return {.ip_offset = layout.ip,
          .udp_offset = layout.transport,
          .payload_bytes = static_cast<std::uint16_t>(payload_bytes),
          .is_ipv6 = layout.is_ipv6};
}

/// One end of a datagram, as bytes that compare and hash quickly. IPv4 addresses are mapped (RFC 4291, 2.5.5.2).
struct EndName {
  std::array<std::uint64_t, 2> address{};  ///< network order
  std::uint32_t port = 0;                  ///< host order

  static EndName of(const SocketAddress& address);
  friend bool operator==(const EndName& a, const EndName& b) {
    return ((a.address[0] ^ b.address[0]) | (a.address[1] ^ b.address[1]) | (a.port ^ b.port)) == 0;
  }
};

namespace frame_parts {

template <class Header>
Header header_at(std::span<const std::byte> bytes, std::size_t offset) {
  Header header;
  std::memcpy(&header, bytes.data() + offset, sizeof header);
  return header;
}

inline std::array<std::uint64_t, 2> mapped(wire::Be32 address) {
  std::array<std::uint32_t, 4> words{0, 0, std::bit_cast<std::uint32_t>(wire::Be32(0xffff)),
                                     std::bit_cast<std::uint32_t>(address)};
  return std::bit_cast<std::array<std::uint64_t, 2>>(words);
}

/// Which end: its address within the IP header, its port within the UDP header.
struct End {
  std::size_t v4_address, v6_address, port;
};
inline constexpr End kSource{offsetof(wire::Ipv4Header, source), offsetof(wire::Ipv6Header, source),
                             offsetof(wire::UdpHeader, source_port)};
inline constexpr End kDestination{offsetof(wire::Ipv4Header, destination), offsetof(wire::Ipv6Header, destination),
                                  offsetof(wire::UdpHeader, destination_port)};

inline EndName name_of(std::span<const std::byte> bytes, const UdpFrame& frame, const End& end) {
  EndName name;
  if (frame.is_ipv6) {
    name.address = header_at<std::array<std::uint64_t, 2>>(bytes, frame.ip_offset + end.v6_address);
  } else {
    name.address = mapped(header_at<wire::Be32>(bytes, frame.ip_offset + end.v4_address));
  }
  name.port = header_at<wire::Be16>(bytes, frame.udp_offset + end.port).host();
  return name;
}

inline bool has_scope(const in6_addr& address) {
  return IN6_IS_ADDR_LINKLOCAL(&address) || IN6_IS_ADDR_MC_LINKLOCAL(&address);
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

}  // namespace frame_parts

inline EndName source_name(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame_parts::name_of(bytes, frame, frame_parts::kSource);
}
inline EndName destination_name(std::span<const std::byte> bytes, const UdpFrame& frame) {
  return frame_parts::name_of(bytes, frame, frame_parts::kDestination);
}

/// Both ends of a datagram as they lie in its headers: to see quickly that they are those of the one before.
class EndBytes {
 public:
  EndBytes() = default;
  EndBytes(std::span<const std::byte> headers, const UdpFrame& frame) : is_ipv6_(frame.is_ipv6) {
    std::memcpy(ports_.data(), headers.data() + frame.udp_offset, kPorts);
    const std::byte* const ip = headers.data() + frame.ip_offset;
    if (is_ipv6_) {
      std::memcpy(addresses_.data(), ip + offsetof(wire::Ipv6Header, source), kV6);
    } else {
      std::memcpy(addresses_.data(), ip + offsetof(wire::Ipv4Header, source), kV4);
    }
  }
  [[nodiscard]] bool are_in(std::span<const std::byte> headers, const UdpFrame& frame) const {
    if (is_ipv6_ != frame.is_ipv6) return false;
    if (std::memcmp(ports_.data(), headers.data() + frame.udp_offset, kPorts) != 0) return false;
    const std::byte* const ip = headers.data() + frame.ip_offset;
    return is_ipv6_ ? std::memcmp(addresses_.data(), ip + offsetof(wire::Ipv6Header, source), kV6) == 0
                    : std::memcmp(addresses_.data(), ip + offsetof(wire::Ipv4Header, source), kV4) == 0;
  }

 private:
  // Of both ends.
  static constexpr std::size_t kPorts = 2 * sizeof(wire::Be16), kV4 = 2 * sizeof(wire::Be32),
                               kV6 = 2 * sizeof(wire::Ipv6Address);
  bool is_ipv6_ = false;
  std::array<std::byte, kPorts> ports_{};
  std::array<std::byte, kV6> addresses_{};
};

/// @param ifindex  scope of a link-local IPv6 address
SocketAddress source_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex);
SocketAddress destination_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex);
/// source_of() as an application sees it: to a socket of family `domain`, which receives IPv4 as mapped addresses when
/// that is AF_INET6. At most `length` bytes are written, which becomes the name's, as by recvfrom(2).
[[gnu::always_inline]] inline void copy_source(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex,
                                               int domain, sockaddr* out, socklen_t& length) {
  using namespace frame_parts;
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
std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const UdpFrame& frame);
/// Type of service, or traffic class.
std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const UdpFrame& frame);

}  // namespace ringsock::vma
