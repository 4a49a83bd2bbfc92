// IP packets of the host: IPv4 addresses are kept as ::ffff:a.b.c.d.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/tcp/segment.h"

namespace ringsock::packetdrill {

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
  engine::tcp::SegmentIn segment;
};

/// Returns nothing for what is no whole TCP segment with a right checksum.
std::optional<Arrival> parse_packet(std::span<const std::byte> packet);

/// Makes the packets of a descriptor, one per segment_bytes of payload; `whole` leaves it in one packet (TSO).
std::vector<std::vector<std::byte>> make_packets(const Endpoint& from, const Endpoint& to,
                                                 const engine::tcp::SegmentOut& out, bool whole);

}  // namespace ringsock::packetdrill
