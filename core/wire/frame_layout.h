// The layout of a frame: the places of its headers, after a check that they are consistent. The frame contains UDP or
// TCP in IPv4 or IPv6 on Ethernet. The layout is computed once, when a frame is received, and passed on with the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"
#include "core/wire/ip.h"

namespace ringsock::wire {

/// The longest headers: Ethernet, one tag, IPv4 with options, TCP with options.
inline constexpr std::size_t kMaxHeaderBytes = 14 + 4 + 60 + 60;

/// Offsets from the start of the frame, in bytes.
struct FrameLayout {
  std::uint16_t ip = 0;
  std::uint16_t transport = 0;
  std::uint16_t payload = 0;
  bool is_ipv6 = false;
  std::uint8_t protocol = 0;        ///< kIpProtocolUdp or kIpProtocolTcp; 0: another protocol, or a fragment
  std::uint32_t end = 0;            ///< of the packet according to its IP header; the rest of the frame is padding
  std::uint32_t payload_bytes = 0;  ///< of UDP or TCP; UDP's own length may exclude the last bytes before `end`

  bool operator==(const FrameLayout&) const = default;
  [[nodiscard]] bool is_tcp() const { return protocol == kIpProtocolTcp; }
  [[nodiscard]] std::size_t checksum_offset() const { return is_tcp() ? 16 : 6; }  ///< from `transport`
  /// Returns the number of bytes that the checksum of UDP or TCP covers beside the pseudo header.
  [[nodiscard]] std::uint32_t transport_bytes() const { return payload - transport + payload_bytes; }
};
static_assert(sizeof(FrameLayout) == 16);

/// Finds only the beginning and the end of the IP header. Errors: those of parse_headers().
Result<FrameLayout> parse_network(std::span<const std::byte> headers);

/// Reads only the headers of a packet of `frame_bytes` that begins with `headers`, as a sender may have left them.
/// Lengths and checksums in the headers are not checked; `end` and `payload_bytes` are computed from `frame_bytes`.
/// Errors: EINVAL when it is not UDP or TCP in IP, or `headers` is too short.
Result<FrameLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes);

/// Reads a received packet. Errors: EPROTO when it is not UDP or TCP in IP, or when the lengths in the headers
/// contradict each other or the length of the frame; EBADMSG when the checksum of the IPv4 header is wrong.
Result<FrameLayout> parse_received(std::span<const std::byte> frame);

/// Returns the sum of the pseudo header for `bytes` of transport header and payload.
InternetSum pseudo_header(std::span<const std::byte> frame, const FrameLayout& layout, std::uint32_t bytes);

/// Returns whether the checksum of an IPv4 header is right; always true for IPv6, which has none.
bool has_valid_network_checksum(std::span<const std::byte> frame, const FrameLayout& layout);
/// Returns whether UDP's or TCP's checksum of a received packet is right.
bool has_valid_checksum(std::span<const std::byte> frame, const FrameLayout& layout);
/// Returns whether the checksum field contains only the sum of the pseudo header, as for a device that does the rest.
bool has_partial_checksum(std::span<const std::byte> frame, const FrameLayout& layout);

/// Does what a device with receive checksums does: returns whether the checksums of IPv4 and of UDP or TCP are right,
/// if the packet has them. Returns false also when its lengths contradict each other.
bool has_right_checksums(std::span<const std::byte> frame);
/// Does what a device with send checksums does: fills them in, whatever the fields contain. Does nothing when the frame
/// is no IP packet.
void fill_checksums(std::span<std::byte> frame);

}  // namespace ringsock::wire
