// Where things are in a received frame that holds a UDP datagram.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/socket_address.h"

namespace ringsock::vma {

/// Offsets from the frame's first byte. A value that stands beside the frame's buffer.
struct UdpFrame {
  std::uint8_t family = 0;       ///< AF_INET or AF_INET6
  std::uint16_t ip_offset = 0;   ///< of the IP header
  std::uint16_t udp_offset = 0;  ///< of the UDP header
  std::uint16_t payload_bytes = 0;

  [[nodiscard]] std::size_t payload_offset() const { return udp_offset + std::size_t{8}; }
};

/// Nothing when it is none: not UDP, a fragment, an extension header, or lengths that contradict each other or the
/// frame's. Checksums are the device's business.
std::optional<UdpFrame> parse_udp_frame(std::span<const std::byte> frame);

/// One end of a datagram, as bytes that compare and hash quickly. IPv4 addresses are mapped (RFC 4291, 2.5.5.2).
struct EndName {
  std::array<std::uint64_t, 2> address{};  ///< network order
  std::uint32_t port = 0;                  ///< host order

  static EndName of(const SocketAddress& address);
  friend bool operator==(const EndName& a, const EndName& b) {
    return ((a.address[0] ^ b.address[0]) | (a.address[1] ^ b.address[1]) | (a.port ^ b.port)) == 0;
  }
};
EndName source_name(std::span<const std::byte> bytes, const UdpFrame& frame);
EndName destination_name(std::span<const std::byte> bytes, const UdpFrame& frame);

/// @param ifindex  scope of a link-local IPv6 address
SocketAddress source_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex);
SocketAddress destination_of(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex);
/// source_of() as an application sees it: to a socket of family `domain`, which receives IPv4 as mapped addresses when
/// that is AF_INET6. At most `length` bytes are written, which becomes the name's, as by recvfrom(2).
void copy_source(std::span<const std::byte> bytes, const UdpFrame& frame, int ifindex, int domain, sockaddr* out,
                 socklen_t& length);
std::uint8_t hop_limit_of(std::span<const std::byte> bytes, const UdpFrame& frame);
/// Type of service, or traffic class.
std::uint8_t traffic_class_of(std::span<const std::byte> bytes, const UdpFrame& frame);

}  // namespace ringsock::vma
