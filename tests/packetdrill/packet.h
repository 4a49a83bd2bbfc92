// IP packets of the host: IPv4 addresses are kept as ::ffff:a.b.c.d.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/tcp/segment.h"

namespace ringsock::packetdrill {

using Bytes = std::vector<std::byte>;

struct Endpoint {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
  [[nodiscard]] bool is_v4() const;
  [[nodiscard]] bool is_any() const;
};

/// A TCP segment as it came. The spans of `segment` point into the packet that was parsed.
struct Arrival {
  Endpoint source, destination;
  std::uint8_t ecn = 0;  ///< the two bits of RFC 3168, 5
  engine::tcp::SegmentIn segment;
};

/// Returns nothing for what is no whole TCP segment with a right checksum.
std::optional<Arrival> parse_packet(std::span<const std::byte> packet);

/// Makes the packets of a descriptor, one per segment_bytes of payload; `whole` leaves it in one packet (TSO).
std::vector<Bytes> make_packets(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out,
                                bool whole);
/// Makes one packet of a descriptor, whose ecn_capable does not count.
Bytes make_packet(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out, std::uint8_t ecn);

/// An ICMP or ICMPv6 error about a TCP segment.
struct IcmpError {
  Endpoint source, destination;  ///< of the segment
  std::uint32_t seq = 0;
  std::uint8_t type = 0, code = 0;
  std::uint32_t mtu = 0;
};

/// Returns nothing for what is no such error.
std::optional<IcmpError> parse_icmp_packet(std::span<const std::byte> packet);
/// @param tcp_bytes  payload of the segment
Bytes make_icmp_packet(const Endpoint& router, const IcmpError& error, std::uint32_t tcp_bytes);

}  // namespace ringsock::packetdrill
