// TCP segments. Source: RFC 9293, 3.1. The meaning of fields and options is the engine's (core/engine/tcp).
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"

namespace ringsock::wire {

/// The header without options.
struct TcpHeader {
  Be16 source_port;
  Be16 destination_port;
  Be32 sequence;
  Be32 acknowledgement;
  std::uint8_t words;  ///< length of the header in 32-bit words << 4, 5..15; the low bits are reserved
  std::uint8_t flags;  ///< FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128
  Be16 window;
  Be16 checksum;
  Be16 urgent;

  [[nodiscard]] constexpr std::size_t header_bytes() const { return std::size_t{4} * (words >> 4); }
};
static_assert(sizeof(TcpHeader) == 20 && alignof(TcpHeader) == 1);

inline constexpr std::size_t kMaxTcpOptionBytes = 40;

/// A received segment.
struct TcpSegment {
  TcpHeader header;
  std::span<const std::byte> options;  ///< 0..40 bytes, a multiple of 4
  std::span<const std::byte> payload;
  std::span<const std::byte> whole;  ///< all of them, which the checksum covers
};

/// Reads the payload of an IP packet, which may be one that receive offload has merged. Errors: EPROTO when it is
/// shorter than its header, or the header's length is less than 20 bytes.
inline Result<TcpSegment> parse_tcp(std::span<const std::byte> bytes) {
  TcpSegment out;
  if (bytes.size() < sizeof out.header) return Error{EPROTO, "tcp: short"};
  std::memcpy(&out.header, bytes.data(), sizeof out.header);
  const std::size_t length = out.header.header_bytes();
  if (length < sizeof out.header || length > bytes.size()) return Error{EPROTO, "tcp: length of the header"};
  out.whole = bytes;
  out.options = bytes.subspan(sizeof out.header, length - sizeof out.header);
  out.payload = bytes.subspan(length);
  return out;
}

/// @param pseudo_header  the sum of the pseudo header, with the segment's own length
/// @param may_be_partial  also accepts the sum of the pseudo header alone: on such an interface (veth, lo) senders
/// leave
///                        the checksum to a device that does not exist
inline bool tcp_checksum_is_fine(const TcpSegment& segment, const InternetSum& pseudo_header, bool may_be_partial) {
  if (may_be_partial && segment.header.checksum == pseudo_header.folded()) return true;
  return InternetSum(pseudo_header).add(segment.whole).is_valid();
}

/// Makes a header for a device that completes the checksum: the field has the sum of the pseudo header, as
/// VIRTIO_NET_HDR_F_NEEDS_CSUM wants it. Ports, numbers, flags and window are the caller's to fill in.
/// @param option_bytes  0..40, a multiple of 4
constexpr TcpHeader make_tcp_header(std::size_t option_bytes, const InternetSum& pseudo_header) {
  TcpHeader out{};
  out.words = static_cast<std::uint8_t>((sizeof out + option_bytes) / 4 << 4);
  out.checksum = pseudo_header.folded();
  return out;
}

}  // namespace ringsock::wire
