#include "tests/packetdrill/packet.h"

#include <algorithm>
#include <cstring>

#include "core/wire/emit.h"
#include "core/wire/ip.h"
#include "core/wire/tcp.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::Seq;
using View = std::span<const std::byte>;
constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::uint8_t kIcmp = 1, kIcmpv6 = 58;

/// Both headers of ICMP errors: RFC 792 and RFC 4443 have the MTU at different places.
struct IcmpHeader {
  std::uint8_t type, code;
  wire::Be16 checksum;
  wire::Be32 rest;
};
static_assert(sizeof(IcmpHeader) == 8);

/// What lies behind the IP header, and the ends without ports.
struct IpPacket {
  Endpoint source, destination;
  std::uint8_t protocol = 0, ecn = 0;
  View payload;
};

Endpoint endpoint_of(wire::Be32 v4) {
  Endpoint out;
  std::copy(kMapped.begin(), kMapped.end(), out.address.begin());
  std::memcpy(out.address.data() + 12, &v4, 4);
  return out;
}

wire::Be32 v4_of(const Endpoint& end) {
  wire::Be32 out;
  std::memcpy(&out, end.address.data() + 12, 4);
  return out;
}

/// An error quotes only the start of a packet: its length tells more than is there.
std::optional<IpPacket> parse_ip(View packet, bool quoted) {
  if (packet.empty()) return {};
  if (std::to_integer<int>(packet[0]) >> 4 == 4) {
    wire::Ipv4Header header;
    if (packet.size() < sizeof header) return {};
    std::memcpy(&header, packet.data(), sizeof header);
    const auto parsed = wire::parse_ipv4(packet);
    if (!parsed && !quoted) return {};
    if (header.is_fragment() || header.header_bytes() < sizeof header || header.header_bytes() > packet.size())
      return {};
    return IpPacket{endpoint_of(header.source), endpoint_of(header.destination), header.protocol,
                    static_cast<std::uint8_t>(header.tos & 3),
                    quoted ? packet.subspan(header.header_bytes()) : (*parsed).payload};
  }
  wire::Ipv6Header header;
  if (packet.size() < sizeof header) return {};
  std::memcpy(&header, packet.data(), sizeof header);
  const auto parsed = wire::parse_ipv6(packet);
  if (!parsed && !quoted) return {};
  return IpPacket{{header.source, 0},
                  {header.destination, 0},
                  header.next_header,
                  static_cast<std::uint8_t>(header.traffic_class() & 3),
                  quoted ? packet.subspan(sizeof header) : (*parsed).payload};
}

wire::InternetSum pseudo_sum(const Endpoint& from, const Endpoint& to, std::uint8_t protocol, std::size_t bytes) {
  const auto length = static_cast<std::uint16_t>(bytes);
  return from.is_v4() ? wire::pseudo_header_sum(v4_of(from), v4_of(to), protocol, length)
                      : wire::pseudo_header_sum(from.address, to.address, protocol, length);
}

/// Makes room for a packet and writes its IP header. Returns the packet and the start of the rest.
std::pair<Bytes, std::size_t> start_packet(const Endpoint& from, const Endpoint& to, std::uint8_t protocol,
                                           std::uint8_t ecn, std::size_t bytes) {
  const std::size_t header = from.is_v4() ? sizeof(wire::Ipv4Header) : sizeof(wire::Ipv6Header);
  Bytes packet(header + bytes);
  if (from.is_v4())
    wire::emit(packet, wire::make_ipv4_header({.tos = ecn,
                                               .payload_bytes = static_cast<std::uint16_t>(bytes),
                                               .fragment = wire::kIpv4DontFragment,
                                               .protocol = protocol,
                                               .source = v4_of(from),
                                               .destination = v4_of(to)}));
  else
    wire::emit(packet, wire::make_ipv6_header({.traffic_class = ecn,
                                               .payload_bytes = static_cast<std::uint16_t>(bytes),
                                               .next_header = protocol,
                                               .source = from.address,
                                               .destination = to.address}));
  return {std::move(packet), header};
}

Bytes payload_of(const engine::tcp::SegmentOut& out) {
  Bytes all;
  for (const auto& piece : out.payload) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

Bytes make_piece(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out, Seq seq,
                 std::uint8_t flags, View payload, std::uint8_t ecn) {
  const std::size_t length = sizeof(wire::TcpHeader) + out.option_bytes + payload.size();
  auto [packet, start] = start_packet(from, to, wire::kIpProtocolTcp, ecn, length);
  const auto pseudo = pseudo_sum(from, to, wire::kIpProtocolTcp, length);
  wire::TcpHeader header = wire::make_tcp_header(out.option_bytes, pseudo);
  header.source_port = wire::Be16(from.port);
  header.destination_port = wire::Be16(to.port);
  header.sequence = wire::Be32(seq);
  header.acknowledgement = wire::Be32((flags & engine::tcp::kAck) != 0 ? out.ack : 0);
  header.flags = flags;
  header.window = wire::Be16(out.window);
  header.urgent = wire::Be16(out.urgent);
  const auto rest = std::span(packet).subspan(start);
  auto behind = wire::emit(rest, header);
  std::copy_n(out.options.begin(), out.option_bytes, behind.begin());
  std::copy(payload.begin(), payload.end(), behind.begin() + out.option_bytes);
  header.checksum = wire::InternetSum().add(rest).checksum();  // the field has the sum of the pseudo header
  wire::emit(rest, header);
  return packet;
}

}  // namespace

bool Endpoint::is_v4() const { return std::equal(kMapped.begin(), kMapped.end(), address.begin()); }
bool Endpoint::is_any() const {
  return std::all_of(address.begin() + (is_v4() ? 12 : 0), address.end(), [](std::uint8_t byte) { return byte == 0; });
}

std::optional<Arrival> parse_packet(View packet) {
  const auto ip = parse_ip(packet, false);
  if (!ip || ip->protocol != wire::kIpProtocolTcp) return {};
  const auto tcp = wire::parse_tcp(ip->payload);
  if (!tcp) return {};
  const auto& segment = *tcp;
  const auto pseudo = pseudo_sum(ip->source, ip->destination, wire::kIpProtocolTcp, ip->payload.size());
  if (!wire::tcp_checksum_is_fine(segment, pseudo, false)) return {};
  Arrival out{.source = ip->source, .destination = ip->destination, .ecn = ip->ecn, .segment = {}};
  out.source.port = segment.header.source_port.host();
  out.destination.port = segment.header.destination_port.host();
  out.segment.seq = segment.header.sequence.host();
  out.segment.ack = segment.header.acknowledgement.host();
  out.segment.flags = segment.header.flags;
  out.segment.window = segment.header.window.host();
  out.segment.urgent = segment.header.urgent.host();
  out.segment.congestion_experienced = ip->ecn == 3;
  out.segment.options = segment.options;
  out.segment.payload = segment.payload;
  return out;
}

std::vector<Bytes> make_packets(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out,
                                bool whole) {
  const auto payload = payload_of(out);
  const std::size_t step =
      whole || out.segment_bytes == 0 ? std::max<std::size_t>(payload.size(), 1) : out.segment_bytes;
  std::vector<Bytes> packets;
  for (std::size_t at = 0; at == 0 || at < payload.size(); at += step) {
    const auto piece = View(payload).subspan(at, std::min(step, payload.size() - at));
    std::uint8_t flags = out.flags;
    if (at + piece.size() < payload.size())
      flags &= static_cast<std::uint8_t>(~(engine::tcp::kFin | engine::tcp::kPsh));
    if (at != 0) flags &= static_cast<std::uint8_t>(~engine::tcp::kCwr);
    packets.push_back(make_piece(from, to, out, out.seq + static_cast<Seq>(at), flags, piece, out.ecn_capable ? 2 : 0));
  }
  return packets;
}

Bytes make_packet(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out, std::uint8_t ecn) {
  return make_piece(from, to, out, out.seq, out.flags, payload_of(out), ecn);
}

std::optional<IcmpError> parse_icmp_packet(View packet) {
  const auto ip = parse_ip(packet, false);
  IcmpHeader header;
  if (!ip || (ip->protocol != kIcmp && ip->protocol != kIcmpv6) || ip->payload.size() < sizeof header) return {};
  const bool v4 = ip->protocol == kIcmp;
  const auto sum = v4 ? wire::InternetSum() : pseudo_sum(ip->source, ip->destination, kIcmpv6, ip->payload.size());
  if (!wire::InternetSum(sum).add(ip->payload).is_valid()) return {};
  std::memcpy(&header, ip->payload.data(), sizeof header);
  const auto quoted = parse_ip(ip->payload.subspan(sizeof header), true);
  if (!quoted || quoted->protocol != wire::kIpProtocolTcp || quoted->payload.size() < 8) return {};
  std::array<wire::Be16, 2> ports;
  wire::Be32 seq;
  std::memcpy(&ports, quoted->payload.data(), sizeof ports);
  std::memcpy(&seq, quoted->payload.data() + sizeof ports, sizeof seq);
  IcmpError out{quoted->source, quoted->destination, seq.host(), header.type, header.code, 0};
  out.source.port = ports[0].host();
  out.destination.port = ports[1].host();
  out.mtu = v4 ? header.rest.host() & 0xffff : header.rest.host();
  return out;
}

Bytes make_icmp_packet(const Endpoint& router, const IcmpError& error, std::uint32_t tcp_bytes) {
  engine::tcp::SegmentOut segment;
  segment.seq = error.seq;
  segment.flags = engine::tcp::kAck;
  const Bytes payload(tcp_bytes);
  segment.payload[0] = payload;
  Bytes quoted = make_packet(error.source, error.destination, segment, 0);
  const bool v4 = error.source.is_v4();
  const std::uint8_t protocol = v4 ? kIcmp : kIcmpv6;
  quoted.resize(std::min<std::size_t>(quoted.size(), v4 ? 28 : 60));
  auto [packet, start] = start_packet(router, error.source, protocol, 0, sizeof(IcmpHeader) + quoted.size());
  const auto rest = std::span(packet).subspan(start);
  IcmpHeader header{error.type, error.code, {}, wire::Be32(error.mtu)};
  std::copy(quoted.begin(), quoted.end(), wire::emit(rest, header).begin());
  const auto sum = v4 ? wire::InternetSum() : pseudo_sum(router, error.source, kIcmpv6, rest.size());
  header.checksum = wire::InternetSum(sum).add(rest).checksum();
  wire::emit(rest, header);
  return std::move(packet);
}

}  // namespace ringsock::packetdrill
