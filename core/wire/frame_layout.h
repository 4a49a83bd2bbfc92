// The description of a frame: where its headers are, and whether they hold together. UDP or TCP in IPv4 or IPv6, on
// Ethernet. Whoever receives a frame makes it once; everybody else gets it with the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"
#include "core/wire/ip.h"

namespace ringsock::wire {

/// Longest headers: Ethernet, one tag, IPv4 with options, TCP with options.
inline constexpr std::size_t kMaxHeaderBytes = 14 + 4 + 60 + 60;

/// Offsets from the start of the frame, bytes.
struct FrameLayout {
  std::uint16_t ip = 0;
  std::uint16_t transport = 0;
  std::uint16_t payload = 0;
  bool is_ipv6 = false;
  std::uint8_t protocol = 0;        ///< kIpProtocolUdp or kIpProtocolTcp; 0: something else, or a fragment
  std::uint32_t end = 0;            ///< of the packet as its IP header tells; the rest of the frame is padding
  std::uint32_t payload_bytes = 0;  ///< of UDP or TCP; UDP's own length may leave out the last bytes before `end`

  bool operator==(const FrameLayout&) const = default;
  [[nodiscard]] bool is_tcp() const { return protocol == kIpProtocolTcp; }
  [[nodiscard]] std::size_t checksum_offset() const { return is_tcp() ? 16 : 6; }  ///< from `transport`
  /// What the checksum of UDP or TCP covers, beside the pseudo header.
  [[nodiscard]] std::uint32_t transport_bytes() const { return payload - transport + payload_bytes; }
};
static_assert(sizeof(FrameLayout) == 16);

/// Only where IP begins and ends. Errors: as parse_headers().
Result<FrameLayout> parse_network(std::span<const std::byte> headers);

/// The headers alone, of a packet of `frame_bytes` that begins with `headers`: as a sender may have left them, so that
/// lengths and checksums are not looked at, and the payload and `end` are the frame's.
/// Errors: EINVAL when it is something else, or `headers` ends too early.
Result<FrameLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes);

/// A received packet. Errors: EPROTO when it is something else, or the lengths in the headers contradict each other or
/// the frame's; EBADMSG when the checksum of the IPv4 header is wrong.
Result<FrameLayout> parse_received(std::span<const std::byte> frame);

/// The sum of the pseudo header for `bytes` of transport header and payload.
InternetSum pseudo_header(std::span<const std::byte> frame, const FrameLayout& layout, std::uint32_t bytes);

/// Whether the checksum of an IPv4 header is right; IPv6 has none.
bool has_valid_network_checksum(std::span<const std::byte> frame, const FrameLayout& layout);
/// Whether UDP's or TCP's checksum of a received packet is right.
bool has_valid_checksum(std::span<const std::byte> frame, const FrameLayout& layout);
/// Whether the checksum's field holds the sum of the pseudo header only: what a sender leaves to the device.
bool has_partial_checksum(std::span<const std::byte> frame, const FrameLayout& layout);

/// What a device does that looks at checksums: whether a received packet's are right, IPv4's and UDP's or TCP's, as far
/// as it has them. False, too, when its lengths contradict each other.
bool has_right_checksums(std::span<const std::byte> frame);
/// What a device does that fills them in, whatever is there. Nothing, when the frame is no IP packet.
void fill_checksums(std::span<std::byte> frame);

}  // namespace ringsock::wire
