#include "tests/packetdrill/packet.h"

#include <algorithm>
#include <cstring>

namespace ringsock::packetdrill {
namespace {

using engine::tcp::Seq;
constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
using Bytes = std::span<const std::byte>;

std::uint32_t get(Bytes bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

void put(std::vector<std::byte>& to, std::uint32_t value, int count) {
  for (int shift = 8 * (count - 1); shift >= 0; shift -= 8) to.push_back(static_cast<std::byte>(value >> shift));
}

std::uint32_t add(std::uint32_t sum, Bytes bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto value = std::to_integer<std::uint32_t>(bytes[i]);
    sum += i % 2 == 0 ? value << 8 : value;
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

/// RFC 9293, 3.1, and RFC 8200, 8.1: the sum with the pseudo header.
std::uint32_t tcp_sum(const Endpoint& a, const Endpoint& b, Bytes segment) {
  const std::size_t skip = a.is_v4() ? 12 : 0;
  std::uint32_t sum = 6 + static_cast<std::uint32_t>(segment.size());
  sum = add(sum, std::as_bytes(std::span(a.address)).subspan(skip));
  sum = add(sum, std::as_bytes(std::span(b.address)).subspan(skip));
  return add(sum, segment);
}

std::uint16_t fold(std::uint32_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

void set_address(Endpoint& out, Bytes bytes) {
  if (bytes.size() == 4) std::copy(kMapped.begin(), kMapped.end(), out.address.begin());
  std::memcpy(out.address.data() + (16 - bytes.size()), bytes.data(), bytes.size());
}

/// Fills in the addresses. Returns the payload of the IP packet, or nothing.
Bytes parse_ip(Bytes packet, Arrival& out) {
  if (packet.empty()) return {};
  const std::uint32_t version = get(packet, 0, 1) >> 4;
  if (version == 4 && packet.size() >= 20) {
    const std::size_t header = 4 * (get(packet, 0, 1) & 15), length = get(packet, 2, 2);
    const bool fragment = (get(packet, 6, 2) & 0x3fff) != 0;
    if (header < 20 || length < header || length > packet.size() || get(packet, 9, 1) != 6 || fragment) return {};
    out.segment.congestion_experienced = (get(packet, 1, 1) & 3) == 3;
    set_address(out.source, packet.subspan(12, 4));
    set_address(out.destination, packet.subspan(16, 4));
    return packet.subspan(header, length - header);
  }
  if (version != 6 || packet.size() < 40 || get(packet, 6, 1) != 6) return {};
  const std::size_t length = get(packet, 4, 2);
  if (40 + length > packet.size()) return {};
  out.segment.congestion_experienced = (get(packet, 0, 2) >> 4 & 3) == 3;
  set_address(out.source, packet.subspan(8, 16));
  set_address(out.destination, packet.subspan(24, 16));
  return packet.subspan(40, length);
}

void put_ip(std::vector<std::byte>& to, const Endpoint& a, const Endpoint& b, std::size_t length, bool ecn) {
  const std::uint32_t tos = ecn ? 2 : 0;
  const auto from = std::as_bytes(std::span(a.address)), dest = std::as_bytes(std::span(b.address));
  if (!a.is_v4()) {
    put(to, 6u << 28 | tos << 20, 4);
    put(to, static_cast<std::uint32_t>(length), 2);
    put(to, 6 << 8 | 64, 2);
    to.insert(to.end(), from.begin(), from.end());
    to.insert(to.end(), dest.begin(), dest.end());
    return;
  }
  put(to, 0x4500 | tos, 2);
  put(to, static_cast<std::uint32_t>(20 + length), 2);
  put(to, 0x00004000, 4);  // may not be cut
  put(to, 64 << 8 | 6, 2);
  put(to, 0, 2);
  to.insert(to.end(), from.begin() + 12, from.end());
  to.insert(to.end(), dest.begin() + 12, dest.end());
  const std::uint16_t sum = static_cast<std::uint16_t>(~fold(add(0, to)));
  to[10] = static_cast<std::byte>(sum >> 8);
  to[11] = static_cast<std::byte>(sum & 0xff);
}

std::vector<std::byte> payload_of(const engine::tcp::SegmentOut& out) {
  std::vector<std::byte> all;
  for (const auto& piece : out.payload) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

std::vector<std::byte> make_packet(const Endpoint& from, const Endpoint& to, const engine::tcp::SegmentOut& out,
                                   Seq seq, std::uint8_t flags, Bytes payload) {
  std::vector<std::byte> packet;
  const std::size_t header = 20u + out.option_bytes;
  put_ip(packet, from, to, header + payload.size(), out.ecn_capable);
  const std::size_t start = packet.size();
  put(packet, static_cast<std::uint32_t>(from.port) << 16 | to.port, 4);
  put(packet, seq, 4);
  put(packet, (flags & engine::tcp::kAck) != 0 ? out.ack : 0, 4);
  put(packet, static_cast<std::uint32_t>(header / 4 << 12) | flags, 2);
  put(packet, out.window, 2);
  put(packet, 0, 2);
  put(packet, out.urgent, 2);
  packet.insert(packet.end(), out.options.begin(), out.options.begin() + out.option_bytes);
  packet.insert(packet.end(), payload.begin(), payload.end());
  const auto sum = static_cast<std::uint16_t>(~fold(tcp_sum(from, to, Bytes(packet).subspan(start))));
  packet[start + 16] = static_cast<std::byte>(sum >> 8);
  packet[start + 17] = static_cast<std::byte>(sum & 0xff);
  return packet;
}

}  // namespace

bool Endpoint::is_v4() const { return std::equal(kMapped.begin(), kMapped.end(), address.begin()); }
bool Endpoint::is_any() const {
  return std::all_of(address.begin() + (is_v4() ? 12 : 0), address.end(), [](std::uint8_t byte) { return byte == 0; });
}

std::optional<Arrival> parse_packet(Bytes packet) {
  Arrival out;
  const Bytes tcp = parse_ip(packet, out);
  if (tcp.size() < 20) return {};
  const std::size_t header = 4 * (get(tcp, 12, 1) >> 4);
  if (header < 20 || header > tcp.size() || fold(tcp_sum(out.source, out.destination, tcp)) != 0xffff) return {};
  out.source.port = static_cast<std::uint16_t>(get(tcp, 0, 2));
  out.destination.port = static_cast<std::uint16_t>(get(tcp, 2, 2));
  out.segment.seq = get(tcp, 4, 4);
  out.segment.ack = get(tcp, 8, 4);
  out.segment.flags = static_cast<std::uint8_t>(get(tcp, 13, 1));
  out.segment.window = static_cast<std::uint16_t>(get(tcp, 14, 2));
  out.segment.urgent = static_cast<std::uint16_t>(get(tcp, 18, 2));
  out.segment.options = tcp.subspan(20, header - 20);
  out.segment.payload = tcp.subspan(header);
  return out;
}

std::vector<std::vector<std::byte>> make_packets(const Endpoint& from, const Endpoint& to,
                                                 const engine::tcp::SegmentOut& out, bool whole) {
  const auto payload = payload_of(out);
  const std::size_t step =
      whole || out.segment_bytes == 0 ? std::max<std::size_t>(payload.size(), 1) : out.segment_bytes;
  std::vector<std::vector<std::byte>> packets;
  for (std::size_t at = 0; at == 0 || at < payload.size(); at += step) {
    const auto piece = Bytes(payload).subspan(at, std::min(step, payload.size() - at));
    std::uint8_t flags = out.flags;
    if (at + piece.size() < payload.size())
      flags &= static_cast<std::uint8_t>(~(engine::tcp::kFin | engine::tcp::kPsh));
    if (at != 0) flags &= static_cast<std::uint8_t>(~engine::tcp::kCwr);
    packets.push_back(make_packet(from, to, out, out.seq + static_cast<Seq>(at), flags, piece));
  }
  return packets;
}

}  // namespace ringsock::packetdrill
