// Where the headers of a packet end, and whether they hold together: UDP or TCP in IPv4 or IPv6, on Ethernet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"

namespace ringsock::soft {

/// Longest headers: Ethernet, one tag, IPv4 with options, TCP with options.
inline constexpr std::size_t kMaxHeaderBytes = 14 + 4 + 60 + 60;

/// Offsets from the start of the frame, bytes.
struct PacketLayout {
  std::uint16_t ip = 0;
  std::uint16_t transport = 0;
  std::uint16_t payload = 0;
  std::uint32_t end = 0;  ///< of the packet as its IP header tells; the rest of the frame is padding
  bool is_ipv6 = false;
  bool is_tcp = false;
  bool has_transport = false;  ///< UDP or TCP, and not a fragment

  bool operator==(const PacketLayout&) const = default;
  [[nodiscard]] std::size_t checksum_offset() const { return is_tcp ? 16 : 6; }  ///< from `transport`
};

/// Only where IP begins and ends. Errors: as parse_headers().
Result<PacketLayout> parse_network(std::span<const std::byte> headers);

/// The headers alone, of a packet of `frame_bytes` that begins with `headers`: as a sender may have left them, so that
/// lengths and checksums are not looked at, and `end` is the frame's.
/// Errors: EINVAL when it is something else, or `headers` ends too early.
Result<PacketLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes);

/// A received packet. Errors: EPROTO when it is something else, or the lengths in the headers contradict each other or
/// the frame's; EBADMSG when the checksum of the IPv4 header is wrong.
Result<PacketLayout> parse_received(std::span<const std::byte> frame);

/// The sum of the pseudo header for `bytes` of transport header and payload.
wire::InternetSum pseudo_header(std::span<const std::byte> frame, const PacketLayout& layout, std::uint32_t bytes);

/// Whether UDP's or TCP's checksum of a received packet is right.
bool has_valid_checksum(std::span<const std::byte> frame, const PacketLayout& layout);
/// Whether the checksum's field holds the sum of the pseudo header only: what a sender leaves to the device.
bool has_partial_checksum(std::span<const std::byte> frame, const PacketLayout& layout);

/// What a device does that looks at checksums: whether a received packet's are right, IPv4's and UDP's or TCP's, as far
/// as it has them. False, too, when its lengths contradict each other.
bool has_right_checksums(std::span<const std::byte> frame);
/// What a device does that fills them in, whatever is there. Nothing, when the frame is no IP packet.
void fill_checksums(std::span<std::byte> frame);

}  // namespace ringsock::soft
