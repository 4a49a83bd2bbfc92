// The two headers of datagram rsockets: of the rendezvous over kernel UDP, and of data on a UD queue pair.
// Source: rdma-core librdmacm/docs/rsocket; fact sheet 3.2 and 3.4.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/wire/big_endian.h"

namespace ringsock::wire {

inline constexpr std::uint32_t kRsUdpTag = 0x55555555;
inline constexpr std::uint32_t kRsUdQkey = 0x01234567;
inline constexpr std::uint32_t kMaxQpNumber = (1U << 24) - 1;
inline constexpr std::size_t kRsSlotBytes = 2048;  ///< the largest datagram on a UD queue pair, header included

/// What a rendezvous packet is for.
enum class RsUdpOp : std::uint8_t {
  data = 0,     ///< a datagram of the user follows
  control = 7,  ///< only tells the sender's queue pair
};

/// What ringsock tells another ringsock in a rendezvous header, in the byte that rdma-core sends as 0 and does not
/// read. All is false and 0 in packets of rdma-core. The embedded device sets `is_shared` only.
struct RsUdpNote {
  bool is_on_ethernet = false;  ///< the number is of a queue pair on an Ethernet port, which is reached by its GID
  bool takes_large = false;     ///< takes fragments, and rendezvous packets with datagrams of up to kMaxRsLarge
  bool asks = false;            ///< an answer is wanted, also to a control packet
  bool knows = false;           ///< no answer is wanted
  bool is_shared = false;       ///< several processes read the port: the number is no answer, and none is wanted
  std::uint8_t mtu = 0;         ///< of the queue pair's port, enum ibv_mtu; 0: not told
  bool operator==(const RsUdpNote&) const = default;
};

namespace detail {
inline constexpr std::uint8_t kNoteEthernet = 0x01, kNoteLarge = 0x02, kNoteAsks = 0x04, kNoteKnows = 0x08,
                              kNoteShared = 0x80;
inline constexpr unsigned kNoteMtuShift = 4;
inline constexpr std::uint8_t kNoteMtuMask = 7;
}  // namespace detail

constexpr std::uint8_t emit_rs_note(const RsUdpNote& note) {
  unsigned out = static_cast<unsigned>(note.mtu & detail::kNoteMtuMask) << detail::kNoteMtuShift;
  if (note.is_on_ethernet) out |= detail::kNoteEthernet;
  if (note.takes_large) out |= detail::kNoteLarge;
  if (note.asks) out |= detail::kNoteAsks;
  if (note.knows) out |= detail::kNoteKnows;
  if (note.is_shared) out |= detail::kNoteShared;
  return static_cast<std::uint8_t>(out);
}
constexpr RsUdpNote parse_rs_note(std::uint8_t byte) {
  return {(byte & detail::kNoteEthernet) != 0,
          (byte & detail::kNoteLarge) != 0,
          (byte & detail::kNoteAsks) != 0,
          (byte & detail::kNoteKnows) != 0,
          (byte & detail::kNoteShared) != 0,
          static_cast<std::uint8_t>(byte >> detail::kNoteMtuShift & detail::kNoteMtuMask)};
}

/// Returns the bytes of an enum ibv_mtu: 256 to 4096.
constexpr std::size_t mtu_bytes(unsigned mtu) { return std::size_t{128} << std::clamp(mtu, 1U, 5U); }

/// The rendezvous header from an IPv4 address.
struct RsUdpHeader4 {
  Be32 tag;                             ///< kRsUdpTag
  std::uint8_t version;                 ///< 4
  std::uint8_t op;                      ///< RsUdpOp
  std::uint8_t length;                  ///< of the header, bytes
  std::uint8_t note;                    ///< RsUdpNote; 0 in rdma-core
  Be32 qp_number;                       ///< in the low 24 bits
  std::array<std::uint8_t, 4> address;  ///< the sender's; not read
};
static_assert(sizeof(RsUdpHeader4) == 16 && alignof(RsUdpHeader4) == 1);

/// The same from an IPv6 address. As in rdma-core, the address field has the flow information and the first 12 bytes of
/// the address; not read.
struct RsUdpHeader6 {
  Be32 tag;
  std::uint8_t version;  ///< 6
  std::uint8_t op;
  std::uint8_t length;
  std::uint8_t note;
  Be32 qp_number;
  std::array<std::uint8_t, 16> address;
};
static_assert(sizeof(RsUdpHeader6) == 28 && alignof(RsUdpHeader6) == 1);

/// The header of a datagram on a UD queue pair; the IPv4 form ends behind `v4_address`.
struct RsUdHeader {
  std::uint8_t version;  ///< 4 or 6
  std::uint8_t length;   ///< of the header: 8 or 24
  Be16 port;             ///< the sender's
  std::array<std::uint8_t, 4> v4_address_or_flow;
  std::array<std::uint8_t, 16> v6_address;
};
static_assert(sizeof(RsUdHeader) == 24 && alignof(RsUdHeader) == 1);
inline constexpr std::size_t kRsUdHeader4Bytes = 8;

/// Returns the bytes of the headers for datagrams between addresses of `family`.
constexpr std::size_t rs_udp_header_bytes(int family) {
  return family == AF_INET ? sizeof(RsUdpHeader4) : sizeof(RsUdpHeader6);
}
constexpr std::size_t rs_ud_header_bytes(int family) {
  return family == AF_INET ? kRsUdHeader4Bytes : sizeof(RsUdHeader);
}
/// The largest datagram of a user that a rendezvous packet carries between two of ringsock: what UDP over IPv4 carries
/// behind the longer header.
inline constexpr std::size_t kMaxRsLarge = 65507 - sizeof(RsUdpHeader6);
/// Returns the largest datagram of a user: 2040 bytes over IPv4, 2024 over IPv6.
constexpr std::size_t max_rs_datagram(int family) { return kRsSlotBytes - rs_ud_header_bytes(family); }

/// A header as bytes.
struct RsHeaderBytes {
  std::array<std::byte, 36> room{};
  std::size_t length = 0;
  [[nodiscard]] std::span<const std::byte> view() const { return std::span(room).first(length); }
};

namespace detail {
template <class Header>
RsHeaderBytes bytes_of(const Header& header, std::size_t length = sizeof(Header)) {
  RsHeaderBytes out;
  std::memcpy(out.room.data(), &header, length);
  out.length = length;
  return out;
}
}  // namespace detail

/// Writes a rendezvous header. `source` is AF_INET or AF_INET6, not mapped.
inline RsHeaderBytes emit_rs_udp(RsUdpOp op, std::uint32_t qp_number, const SocketAddress& source,
                                 const RsUdpNote& note = {}) {
  const auto fill = [&](auto header, std::uint8_t version) {
    header.tag = Be32(kRsUdpTag);
    header.version = version;
    header.op = static_cast<std::uint8_t>(op);
    header.length = sizeof header;
    header.note = emit_rs_note(note);
    header.qp_number = Be32(qp_number & kMaxQpNumber);
    return header;
  };
  if (source.family() == AF_INET) {
    RsUdpHeader4 header = fill(RsUdpHeader4{}, 4);
    std::memcpy(header.address.data(), &source.in4().sin_addr, header.address.size());
    return detail::bytes_of(header);
  }
  RsUdpHeader6 header = fill(RsUdpHeader6{}, 6);
  std::memcpy(header.address.data(), &source.in6().sin6_flowinfo, 4);
  std::memcpy(header.address.data() + 4, &source.in6().sin6_addr, 12);
  return detail::bytes_of(header);
}

struct ParsedRsUdp {
  RsUdpOp op;
  RsUdpNote note;
  std::uint32_t qp_number;             ///< claimed by the sender
  std::span<const std::byte> payload;  ///< empty for control packets
};

/// Reads a rendezvous packet. Pure. The version must be that of the sender's address.
/// @param from  the address of the UDP packet. A mapped one may come with either version: rdma-core sends 6 there.
/// Errors: EPROTO a packet that is too short, of another tag, version, length or operation.
inline Result<ParsedRsUdp> parse_rs_udp(std::span<const std::byte> bytes, const SocketAddress& from) {
  RsUdpHeader4 header;  // the fields that are read are the same in both
  if (bytes.size() < sizeof header) return Error{EPROTO, "rs_udp: short"};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.tag.host() != kRsUdpTag) return Error{EPROTO, "rs_udp: tag"};
  const bool is_4 = header.version == 4 && header.length == sizeof(RsUdpHeader4);
  const bool is_6 = header.version == 6 && header.length == sizeof(RsUdpHeader6);
  const bool may_be_4 = from.family() == AF_INET || from.is_v4_mapped();
  if (!(is_4 && may_be_4) && !(is_6 && from.family() == AF_INET6)) return Error{EPROTO, "rs_udp: version"};
  if (bytes.size() < header.length) return Error{EPROTO, "rs_udp: short"};
  const auto op = static_cast<RsUdpOp>(header.op);
  if (op != RsUdpOp::data && op != RsUdpOp::control) return Error{EPROTO, "rs_udp: operation"};
  const auto payload = bytes.subspan(header.length);
  return ParsedRsUdp{op, parse_rs_note(header.note), header.qp_number.host() & kMaxQpNumber,
                     op == RsUdpOp::data ? payload : payload.first(0)};
}

/// Writes the header of a datagram on a UD queue pair. `source` is AF_INET or AF_INET6, not mapped, with its port.
inline RsHeaderBytes emit_rs_ud(const SocketAddress& source) {
  RsUdHeader header{};
  const bool is_4 = source.family() == AF_INET;
  header.version = is_4 ? 4 : 6;
  header.length = static_cast<std::uint8_t>(rs_ud_header_bytes(source.family()));
  header.port = Be16(source.port());
  if (is_4) {
    std::memcpy(header.v4_address_or_flow.data(), &source.in4().sin_addr, 4);
  } else {
    std::memcpy(header.v4_address_or_flow.data(), &source.in6().sin6_flowinfo, 4);
    std::memcpy(header.v6_address.data(), &source.in6().sin6_addr, 16);
  }
  return detail::bytes_of(header, header.length);
}

struct ParsedRsUd {
  SocketAddress source;  ///< claimed by the sender; a link-local address has no scope
  std::span<const std::byte> payload;
};

/// Reads what has come by a UD queue pair, without the GRH. Pure. Errors: EPROTO a datagram that is shorter than its
/// header, or another version.
inline Result<ParsedRsUd> parse_rs_ud(std::span<const std::byte> bytes) {
  if (bytes.size() < kRsUdHeader4Bytes) return Error{EPROTO, "rs_ud: short"};
  std::array<std::byte, sizeof(RsUdHeader)> room{};
  std::memcpy(room.data(), bytes.data(), std::min(room.size(), bytes.size()));
  const auto header = std::bit_cast<RsUdHeader>(room);
  const bool is_4 = header.version == 4 && header.length == kRsUdHeader4Bytes;
  const bool is_6 = header.version == 6 && header.length == sizeof header;
  if (!is_4 && !is_6) return Error{EPROTO, "rs_ud: version"};
  if (bytes.size() < header.length) return Error{EPROTO, "rs_ud: short"};
  const auto payload = bytes.subspan(header.length);
  if (is_4) {
    const auto host = std::bit_cast<std::uint32_t>(header.v4_address_or_flow);
    return ParsedRsUd{SocketAddress::v4(ntohl(host), header.port.host()), payload};
  }
  return ParsedRsUd{SocketAddress::v6(std::bit_cast<in6_addr>(header.v6_address), header.port.host()), payload};
}

/// A part of a datagram that is longer than the path's MTU. Only ringsock sends it, and only to a peer that takes large
/// datagrams; rdma-core drops the version. It lies behind the header of a datagram, whose version and length it
/// changes.
struct RsFragment {
  Be32 datagram;     ///< a number of the sender's, another one for each datagram
  Be32 total_bytes;  ///< of the user's datagram: 1..kMaxRsLarge
  Be16 index;        ///< of the piece
  Be16 piece_bytes;  ///< of each piece but the last, which has the rest
};
static_assert(sizeof(RsFragment) == 12 && alignof(RsFragment) == 1);

inline constexpr std::uint8_t kRsFragmentVersion = 0x40;  ///< added to the version
inline constexpr std::size_t kFewestPieceBytes = 128;     ///< pieces of an honest sender fill the smallest MTU
inline constexpr std::size_t kMostPieceBytes = 4096;

/// Writes the header of a piece: that of emit_rs_ud(), and the fragment's.
inline RsHeaderBytes emit_rs_fragment(const RsHeaderBytes& datagram_header, const RsFragment& fragment) {
  static_assert(sizeof(RsUdHeader) + sizeof(RsFragment) <= sizeof(RsHeaderBytes::room));
  RsHeaderBytes out = datagram_header;
  std::memcpy(out.room.data() + out.length, &fragment, sizeof fragment);
  out.length += sizeof fragment;
  out.room[0] |= std::byte{kRsFragmentVersion};
  out.room[1] = static_cast<std::byte>(out.length);
  return out;
}

struct ParsedRsFragment {
  SocketAddress source;  ///< as in ParsedRsUd
  std::uint32_t datagram;
  std::size_t total_bytes;
  std::size_t piece_bytes;
  std::size_t index;
  std::span<const std::byte> payload;  ///< the bytes from index * piece_bytes on
};

/// Returns whether this may be a piece: parse_rs_fragment() tells.
inline bool is_rs_fragment(std::span<const std::byte> bytes) {
  return !bytes.empty() && (bytes[0] & std::byte{kRsFragmentVersion}) != std::byte{0};
}

/// Reads a piece of a datagram, without the GRH. Pure. Errors: EPROTO a piece that is shorter or longer than its place
/// in the datagram, or outside, of another version, or of a datagram that nobody sends.
inline Result<ParsedRsFragment> parse_rs_fragment(std::span<const std::byte> bytes) {
  std::array<std::byte, sizeof(RsUdHeader) + sizeof(RsFragment)> room{};
  const std::size_t header = bytes.size() < 2 ? 0 : std::to_integer<std::size_t>(bytes[1]);
  if (header <= sizeof(RsFragment) || header > room.size() || bytes.size() < header)
    return Error{EPROTO, "rs_fragment: short"};
  std::memcpy(room.data(), bytes.data(), header);
  RsFragment fragment;
  std::memcpy(&fragment, room.data() + header - sizeof fragment, sizeof fragment);
  room[0] ^= std::byte{kRsFragmentVersion};
  room[1] = static_cast<std::byte>(header - sizeof fragment);
  const auto datagram = parse_rs_ud(std::span(room).first(header - sizeof fragment));
  if (!datagram || !datagram->payload.empty()) return Error{EPROTO, "rs_fragment: version"};
  ParsedRsFragment out{
      datagram->source,      fragment.datagram.host(), fragment.total_bytes.host(), fragment.piece_bytes.host(),
      fragment.index.host(), bytes.subspan(header)};
  if (out.total_bytes == 0 || out.total_bytes > kMaxRsLarge) return Error{EPROTO, "rs_fragment: total"};
  if (out.piece_bytes < kFewestPieceBytes || out.piece_bytes > kMostPieceBytes)
    return Error{EPROTO, "rs_fragment: piece"};
  const std::size_t offset = out.index * out.piece_bytes;
  if (offset >= out.total_bytes) return Error{EPROTO, "rs_fragment: place"};
  if (out.payload.size() != std::min(out.piece_bytes, out.total_bytes - offset))
    return Error{EPROTO, "rs_fragment: length"};
  return out;
}

}  // namespace ringsock::wire
