// UDP datagrams. Sources: RFC 768; RFC 8200 8.1 (over IPv6).
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

struct UdpHeader {
  Be16 source_port;
  Be16 destination_port;
  Be16 bytes;     ///< header included, at least 8
  Be16 checksum;  ///< 0: no checksum (IPv4 only)
};
static_assert(sizeof(UdpHeader) == 8 && alignof(UdpHeader) == 1);

/// A received datagram.
struct UdpDatagram {
  UdpHeader header;
  std::span<const std::byte> payload;
  std::span<const std::byte> whole;  ///< header and payload, which the checksum covers
};

/// Reads the payload of an IP packet. Bytes beyond the datagram's own length are ignored, as Linux does. Errors: EPROTO
/// when it is shorter than its header, or than the length in the header.
inline Result<UdpDatagram> parse_udp(std::span<const std::byte> bytes) {
  UdpDatagram out;
  if (bytes.size() < sizeof out.header) return Error{EPROTO, "udp: short"};
  std::memcpy(&out.header, bytes.data(), sizeof out.header);
  const std::size_t length = out.header.bytes.host();
  if (length < sizeof out.header || length > bytes.size()) return Error{EPROTO, "udp: length"};
  out.whole = bytes.first(length);
  out.payload = out.whole.subspan(sizeof out.header);
  return out;
}

/// Rules for checking a received checksum.
enum class UdpChecksumRule {
  ipv4,          ///< it may be absent
  ipv6,          ///< it must be present
  partial_ipv4,  ///< also accepts the sum of the pseudo header alone: on such an interface (veth, lo) senders leave
  partial_ipv6,  ///< the checksum to a device that does not exist
};

/// @param pseudo_header  pseudo_header_sum() of the packet, with the datagram's own length
inline bool udp_checksum_is_fine(const UdpDatagram& datagram, const InternetSum& pseudo_header, UdpChecksumRule rule) {
  const bool may_be_absent = rule == UdpChecksumRule::ipv4 || rule == UdpChecksumRule::partial_ipv4;
  const bool may_be_partial = rule == UdpChecksumRule::partial_ipv4 || rule == UdpChecksumRule::partial_ipv6;
  if (datagram.header.checksum == Be16()) return may_be_absent;
  if (may_be_partial && datagram.header.checksum == pseudo_header.folded()) return true;
  return InternetSum(pseudo_header).add(datagram.whole).is_valid();
}

/// Returns the checksum to send: 0xffff instead of zero, because zero means no checksum.
constexpr Be16 sent_udp_checksum(const InternetSum& sum) {
  const Be16 checksum = sum.checksum();
  return checksum == Be16() ? Be16(0xffff) : checksum;
}

/// Makes a header with checksum zero.
constexpr UdpHeader make_udp_header(Be16 source_port, Be16 destination_port, std::uint16_t payload_bytes) {
  return {source_port, destination_port, Be16(static_cast<std::uint16_t>(sizeof(UdpHeader) + payload_bytes)), {}};
}

}  // namespace ringsock::wire
