// IPv4 and IPv6 headers. Sources: RFC 791, RFC 8200.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"

namespace ringsock::wire {

using Ipv6Address = std::array<std::uint8_t, 16>;

inline constexpr std::uint8_t kIpProtocolTcp = 6;
inline constexpr std::uint8_t kIpProtocolUdp = 17;
inline constexpr std::uint8_t kIpProtocolIpv6Fragment = 44;
inline constexpr std::size_t kMaxIpv4Packet = 65535;   ///< bytes, header included
inline constexpr std::size_t kMaxIpv6Payload = 65535;  ///< bytes behind the fixed header
inline constexpr std::size_t kMinIpv6LinkMtu = 1280;

/// The header without options.
struct Ipv4Header {
  std::uint8_t version_and_words;  ///< 4 << 4 | length of the header in 32-bit words, 5..15
  std::uint8_t tos;
  Be16 total_bytes;  ///< header included
  Be16 identification;
  Be16 fragment;  ///< kIpv4DontFragment, kIpv4MoreFragments, offset in units of 8 bytes
  std::uint8_t ttl;
  std::uint8_t protocol;
  Be16 checksum;  ///< of the header with its options
  Be32 source;
  Be32 destination;

  [[nodiscard]] constexpr std::size_t header_bytes() const { return std::size_t{4} * (version_and_words & 0xf); }
  /// Returns whether this is a fragment of a packet; the first fragment is one, too.
  [[nodiscard]] constexpr bool is_fragment() const;
  /// Returns the offset of a fragment's payload in the payload of the packet, in bytes.
  [[nodiscard]] constexpr std::size_t fragment_offset() const;
};
static_assert(sizeof(Ipv4Header) == 20 && alignof(Ipv4Header) == 1);

inline constexpr std::uint16_t kIpv4DontFragment = 0x4000;
inline constexpr std::uint16_t kIpv4MoreFragments = 0x2000;
inline constexpr std::uint16_t kIpv4OffsetMask = 0x1fff;

constexpr bool Ipv4Header::is_fragment() const {
  return (fragment.host() & (kIpv4MoreFragments | kIpv4OffsetMask)) != 0;
}
constexpr std::size_t Ipv4Header::fragment_offset() const {
  return std::size_t{8} * (fragment.host() & kIpv4OffsetMask);
}

/// A received IPv4 packet or fragment.
struct Ipv4Packet {
  Ipv4Header header;
  std::span<const std::byte> options;  ///< 0..40 bytes, unchecked; see valid_ipv4_options()
  std::span<const std::byte> payload;  ///< its length is that in the header
};

/// Reads the payload of a frame of type kEtherTypeIpv4, which may be padded. Errors: EPROTO when it is too short, of
/// another version, or its lengths contradict each other; EBADMSG when the header's checksum is wrong, unless
/// `verify_checksum` is false because the device has checked it.
inline Result<Ipv4Packet> parse_ipv4(std::span<const std::byte> bytes, bool verify_checksum = true) {
  Ipv4Packet out;
  if (bytes.size() < sizeof out.header) return Error{EPROTO, "ipv4: short"};
  std::memcpy(&out.header, bytes.data(), sizeof out.header);
  if (out.header.version_and_words >> 4 != 4) return Error{EPROTO, "ipv4: version"};
  const std::size_t header_bytes = out.header.header_bytes(), total = out.header.total_bytes.host();
  if (header_bytes < sizeof out.header || header_bytes > total) return Error{EPROTO, "ipv4: header length"};
  if (total > bytes.size()) return Error{EPROTO, "ipv4: total length"};
  if (verify_checksum && !InternetSum().add(bytes.first(header_bytes)).is_valid())
    return Error{EBADMSG, "ipv4: checksum"};
  if (out.header.fragment_offset() + total - header_bytes > kMaxIpv4Packet) return Error{EPROTO, "ipv4: fragment end"};
  out.options = bytes.subspan(sizeof out.header, header_bytes - sizeof out.header);
  out.payload = bytes.subspan(header_bytes, total - header_bytes);
  return out;
}

/// Returns whether each option is complete: not shorter than its head, nor longer than the bytes that are left.
constexpr bool valid_ipv4_options(std::span<const std::byte> options) {
  constexpr std::byte kEnd{0}, kNoOperation{1};
  while (!options.empty() && options[0] != kEnd) {
    std::size_t length = 1;
    if (options[0] != kNoOperation) {
      if (options.size() < 2) return false;
      length = std::to_integer<std::size_t>(options[1]);
      if (length < 2 || length > options.size()) return false;
    }
    options = options.subspan(length);
  }
  return true;
}

/// The fields of an IPv4 header that a sender chooses.
struct Ipv4Fields {
  std::uint8_t tos = 0;
  std::uint16_t payload_bytes;  ///< 0..65515
  std::uint16_t identification = 0;
  std::uint16_t fragment = 0;  ///< kIpv4DontFragment and the like
  std::uint8_t ttl = 64;
  std::uint8_t protocol;
  Be32 source;
  Be32 destination;
};

inline void set_checksum(Ipv4Header& header) {
  header.checksum = Be16();
  header.checksum = InternetSum().add(std::as_bytes(std::span(&header, 1))).checksum();
}

/// Makes a header without options, with its checksum.
inline Ipv4Header make_ipv4_header(const Ipv4Fields& fields) {
  Ipv4Header out{.version_and_words = 4 << 4 | sizeof(Ipv4Header) / 4,
                 .tos = fields.tos,
                 .total_bytes = Be16(static_cast<std::uint16_t>(sizeof(Ipv4Header) + fields.payload_bytes)),
                 .identification = Be16(fields.identification),
                 .fragment = Be16(fields.fragment),
                 .ttl = fields.ttl,
                 .protocol = fields.protocol,
                 .checksum = {},
                 .source = fields.source,
                 .destination = fields.destination};
  set_checksum(out);
  return out;
}

/// The fixed header.
struct Ipv6Header {
  Be32 version_class_flow;  ///< 6 << 28 | traffic class << 20 | flow label
  Be16 payload_bytes;       ///< behind this header, extension headers included
  std::uint8_t next_header;
  std::uint8_t hop_limit;
  Ipv6Address source;
  Ipv6Address destination;

  [[nodiscard]] constexpr std::uint8_t traffic_class() const {
    return static_cast<std::uint8_t>(version_class_flow.host() >> 20);
  }
  [[nodiscard]] constexpr std::uint32_t flow_label() const { return version_class_flow.host() & 0xfffff; }
};
static_assert(sizeof(Ipv6Header) == 40 && alignof(Ipv6Header) == 1);

/// The fragment extension header.
struct Ipv6FragmentHeader {
  std::uint8_t next_header;  ///< of the unfragmented packet
  std::uint8_t reserved;
  Be16 offset_and_more;  ///< offset in bytes (a multiple of 8) | 1 except in the last fragment
  Be32 identification;
};
static_assert(sizeof(Ipv6FragmentHeader) == 8 && alignof(Ipv6FragmentHeader) == 1);

/// A received IPv6 packet.
struct Ipv6Packet {
  Ipv6Header header;
  std::span<const std::byte> payload;  ///< its length is that in the header; includes extension headers
};

/// Reads the payload of a frame of type kEtherTypeIpv6, which may be padded. Extension headers are not parsed. Errors:
/// EPROTO when it is too short or of another version. The payload of jumbograms (RFC 2675) is empty.
inline Result<Ipv6Packet> parse_ipv6(std::span<const std::byte> bytes) {
  Ipv6Packet out;
  if (bytes.size() < sizeof out.header) return Error{EPROTO, "ipv6: short"};
  std::memcpy(&out.header, bytes.data(), sizeof out.header);
  if (out.header.version_class_flow.host() >> 28 != 6) return Error{EPROTO, "ipv6: version"};
  const std::size_t payload = out.header.payload_bytes.host();
  if (payload > bytes.size() - sizeof out.header) return Error{EPROTO, "ipv6: payload length"};
  out.payload = bytes.subspan(sizeof out.header, payload);
  return out;
}

/// The fields of an IPv6 header that a sender chooses.
struct Ipv6Fields {
  std::uint8_t traffic_class = 0;
  std::uint32_t flow_label = 0;  ///< 20 bits
  std::uint16_t payload_bytes;
  std::uint8_t next_header;
  std::uint8_t hop_limit = 64;
  Ipv6Address source;
  Ipv6Address destination;
};
constexpr Ipv6Header make_ipv6_header(const Ipv6Fields& fields) {
  return {
      .version_class_flow = Be32(6u << 28 | std::uint32_t{fields.traffic_class} << 20 | (fields.flow_label & 0xfffff)),
      .payload_bytes = Be16(fields.payload_bytes),
      .next_header = fields.next_header,
      .hop_limit = fields.hop_limit,
      .source = fields.source,
      .destination = fields.destination};
}

/// Returns the sum of the pseudo header, the initial value of UDP and TCP checksums.
/// @param transport_bytes  UDP or TCP header and payload
inline InternetSum pseudo_header_sum(Be32 source, Be32 destination, std::uint8_t protocol,
                                     std::uint16_t transport_bytes) {
  const std::array addresses{source, destination};
  return InternetSum().add(std::as_bytes(std::span(addresses))).add(Be16(protocol)).add(Be16(transport_bytes));
}
/// The same for IPv6 (RFC 8200, 8.1). Packets are no jumbograms, so 16 bits suffice for the length.
inline InternetSum pseudo_header_sum(const Ipv6Address& source, const Ipv6Address& destination, std::uint8_t protocol,
                                     std::uint16_t transport_bytes) {
  const std::array addresses{source, destination};
  return InternetSum().add(std::as_bytes(std::span(addresses))).add(Be16(protocol)).add(Be16(transport_bytes));
}

}  // namespace ringsock::wire
