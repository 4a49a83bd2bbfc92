#include "core/wire/reassembler.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/wire/ip.h"

namespace ringsock::wire {

namespace {

constexpr Error kNoFragment{EPROTO, "fragment"};
constexpr std::size_t kUnit = 8;
constexpr unsigned kNotCapable = 1 << 0, kCongestion = 1 << 3;  // bits of Packet::ecn_seen
constexpr std::uint16_t kIpv6MoreFragments = 1;

template <class Address>
void copy_address(std::array<std::byte, 16>& to, const Address& from) {
  std::memcpy(to.data(), &from, sizeof from);
}

Result<Fragment> parse_ipv4_fragment(std::span<const std::byte> frame, std::size_t at) {
  const auto packet = parse_ipv4(frame.subspan(at));
  if (!packet) return packet.error();
  const Ipv4Header& ip = packet->header;
  if (!ip.is_fragment() || ip.protocol != kIpProtocolUdp) return kNoFragment;
  Fragment out;
  out.headers = frame.first(at + ip.header_bytes());
  out.payload = packet->payload;
  out.offset = ip.fragment_offset();
  out.is_last = (ip.fragment.host() & kIpv4MoreFragments) == 0;
  if (!out.is_last) out.payload = out.payload.first(out.payload.size() / kUnit * kUnit);
  if (ip.header_bytes() + out.end() > kMaxIpv4Packet) return kNoFragment;
  out.ecn = ip.tos & 3;
  copy_address(out.name.source, ip.source);
  copy_address(out.name.destination, ip.destination);
  out.name.identification = ip.identification.host();
  return out;
}

Result<Fragment> parse_ipv6_fragment(std::span<const std::byte> frame, std::size_t at) {
  const auto packet = parse_ipv6(frame.subspan(at));
  if (!packet) return packet.error();
  const Ipv6Header& ip = packet->header;
  Ipv6FragmentHeader fragment;
  if (ip.next_header != kIpProtocolIpv6Fragment || packet->payload.size() < sizeof fragment) return kNoFragment;
  std::memcpy(&fragment, packet->payload.data(), sizeof fragment);
  if (fragment.next_header != kIpProtocolUdp) return kNoFragment;
  Fragment out;
  out.headers = frame.first(at + sizeof ip);
  out.payload = packet->payload.subspan(sizeof fragment);
  out.offset = fragment.offset_and_more.host() & ~(kUnit - 1);
  out.is_last = (fragment.offset_and_more.host() & kIpv6MoreFragments) == 0;
  if (!out.is_last && out.payload.size() % kUnit != 0) return kNoFragment;
  if (out.end() > kMaxIpv6Payload) return kNoFragment;
  out.ecn = ip.traffic_class() & 3;
  copy_address(out.name.source, ip.source);
  copy_address(out.name.destination, ip.destination);
  out.name.identification = fragment.identification.host();
  out.name.is_ipv6 = true;
  return out;
}

/// Changes the header of the first fragment into that of the whole packet.
void complete_ipv4(std::span<std::byte> packet, bool met_congestion) {
  Ipv4Header ip;
  std::memcpy(&ip, packet.data(), sizeof ip);
  ip.total_bytes = Be16(static_cast<std::uint16_t>(packet.size()));
  ip.fragment = Be16();
  ip.checksum = Be16();
  if (met_congestion) ip.tos |= 3;
  std::memcpy(packet.data(), &ip, sizeof ip);
  ip.checksum = InternetSum().add(packet.first(ip.header_bytes())).checksum();
  std::memcpy(packet.data(), &ip, sizeof ip);
}

void complete_ipv6(std::span<std::byte> packet, bool met_congestion) {
  Ipv6Header ip;
  std::memcpy(&ip, packet.data(), sizeof ip);
  ip.payload_bytes = Be16(static_cast<std::uint16_t>(packet.size() - sizeof ip));
  ip.next_header = kIpProtocolUdp;
  if (met_congestion) ip.version_class_flow = Be32(ip.version_class_flow.host() | 3U << 20);
  std::memcpy(packet.data(), &ip, sizeof ip);
}

}  // namespace

Result<Fragment> parse_fragment(std::span<const std::byte> frame, std::size_t ip_offset) {
  if (frame.size() <= ip_offset) return kNoFragment;
  const bool is_ipv6 = std::to_integer<unsigned>(frame[ip_offset]) >> 4 == 6;
  auto fragment = is_ipv6 ? parse_ipv6_fragment(frame, ip_offset) : parse_ipv4_fragment(frame, ip_offset);
  if (fragment && fragment->payload.empty()) return kNoFragment;
  if (fragment) fragment->ip_offset = ip_offset;
  return fragment;
}

std::span<const std::byte> Reassembler::add(const Fragment& fragment, Nanos now) {
  std::erase_if(packets_, [now](const Packet& one) {
    return now - one.began > (one.name.is_ipv6 ? kIpv6Patience : kIpv4Patience);
  });
  Packet& packet = packet_of(fragment.name, now);
  const Fit how = fit(packet, fragment);
  if (how == Fit::known) return {};
  const auto forget = [&] { packets_.erase(packets_.begin() + (&packet - packets_.data())); };
  if (how == Fit::contradiction) {
    forget();
    return {};
  }
  if (fragment.offset == 0) {
    packet.headers.assign(fragment.headers.begin(), fragment.headers.end());
    packet.ip_offset = fragment.ip_offset;
  }
  if (packet.payload.size() < fragment.end()) packet.payload.resize(fragment.end());
  std::ranges::copy(fragment.payload, packet.payload.begin() + static_cast<std::ptrdiff_t>(fragment.offset));
  packet.ecn_seen |= 1U << fragment.ecn;
  const bool is_complete = packet.runs.size() == 1 && packet.runs[0].begin == 0 && packet.payload_bytes != 0 &&
                           packet.runs[0].end == packet.payload_bytes;
  if (!is_complete) return {};
  const bool is_fine = finish(packet);
  forget();
  return is_fine ? std::span<const std::byte>(whole_) : std::span<const std::byte>();
}

Reassembler::Packet& Reassembler::packet_of(const FragmentName& name, Nanos now) {
  const auto known = std::ranges::find(packets_, name, &Packet::name);
  if (known != packets_.end()) return *known;
  if (packets_.size() == kMostPackets) packets_.erase(packets_.begin());
  Packet& packet = packets_.emplace_back();
  packet.name = name;
  packet.began = now;
  return packet;
}

Reassembler::Fit Reassembler::fit(Packet& packet, const Fragment& fragment) {
  const std::size_t end = fragment.end();
  const std::size_t known_end = packet.runs.empty() ? 0 : packet.runs.back().end;
  const bool ends_elsewhere =
      packet.payload_bytes != 0 && (fragment.is_last ? end != packet.payload_bytes : end > packet.payload_bytes);
  if (ends_elsewhere || (fragment.is_last && known_end > end)) return Fit::contradiction;
  const Fit how = insert_run(packet.runs, {fragment.offset, end});
  if (how == Fit::new_piece && fragment.is_last) packet.payload_bytes = end;
  return how;
}

Reassembler::Fit Reassembler::insert_run(std::vector<Run>& runs, Run piece) {
  const auto after = std::ranges::upper_bound(runs, piece.begin, {}, &Run::begin);
  const auto before = after == runs.begin() ? runs.end() : after - 1;
  if (before != runs.end() && piece.end <= before->end) return Fit::known;
  if (before != runs.end() && piece.begin < before->end) return Fit::contradiction;
  if (after != runs.end() && piece.end > after->begin) return Fit::contradiction;
  const bool joins_before = before != runs.end() && before->end == piece.begin;
  const bool joins_after = after != runs.end() && after->begin == piece.end;
  if (joins_before && joins_after) {
    before->end = after->end;
    runs.erase(after);
  } else if (joins_before) {
    before->end = piece.end;
  } else if (joins_after) {
    after->begin = piece.begin;
  } else {
    if (runs.size() == kMostRuns) return Fit::contradiction;
    runs.insert(after, piece);
  }
  return Fit::new_piece;
}

/// Builds the whole packet. Returns false when some fragments met congestion and others come from a sender without ECN,
/// or when the packet is too long.
bool Reassembler::finish(const Packet& packet) {
  const bool met_congestion = (packet.ecn_seen & kCongestion) != 0;
  if (met_congestion && (packet.ecn_seen & kNotCapable) != 0) return false;
  whole_ = packet.headers;
  whole_.insert(whole_.end(), packet.payload.begin(), packet.payload.end());
  const auto ip = std::span(whole_).subspan(packet.ip_offset);
  if (packet.name.is_ipv6) {
    complete_ipv6(ip, met_congestion);
  } else {
    if (ip.size() > kMaxIpv4Packet) return false;  // the first fragment has longer options than the last one
    complete_ipv4(ip, met_congestion);
  }
  return true;
}

}  // namespace ringsock::wire
