#include "tools/tcp_reset.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/wire/ip.h"

namespace ringsock::tools {

namespace {

constexpr std::uint8_t kSyn = 0x02, kRst = 0x04, kAck = 0x10;

struct TcpHeader {
  wire::Be16 source_port, destination_port;
  wire::Be32 sequence, acknowledged;
  std::uint8_t words;  ///< length of the header << 4
  std::uint8_t flags;
  wire::Be16 window, checksum, urgent;
};
static_assert(sizeof(TcpHeader) == 20 && alignof(TcpHeader) == 1);

wire::Be32 as_be(std::uint32_t network) { return std::bit_cast<wire::Be32>(network); }
wire::Be16 as_be(std::uint16_t network) { return std::bit_cast<wire::Be16>(network); }

TcpPacket make_packet(const TcpPair& pair, std::uint32_t sequence, std::uint8_t flags) {
  const auto ip = wire::make_ipv4_header({.payload_bytes = sizeof(TcpHeader),
                                          .protocol = wire::kIpProtocolTcp,
                                          .source = as_be(pair.source),
                                          .destination = as_be(pair.destination)});
  TcpHeader tcp{.source_port = as_be(pair.source_port),
                .destination_port = as_be(pair.destination_port),
                .sequence = wire::Be32(sequence),
                .acknowledged = {},
                .words = sizeof(TcpHeader) / 4 << 4,
                .flags = flags,
                .window = wire::Be16(1024),
                .checksum = {},
                .urgent = {}};
  tcp.checksum = wire::pseudo_header_sum(ip.source, ip.destination, wire::kIpProtocolTcp, sizeof tcp)
                     .add(std::as_bytes(std::span(&tcp, 1)))
                     .checksum();
  TcpPacket out;
  std::memcpy(out.data(), &ip, sizeof ip);
  std::memcpy(out.data() + sizeof ip, &tcp, sizeof tcp);
  return out;
}

}  // namespace

TcpPacket make_syn(const TcpPair& pair) { return make_packet(pair, 1, kSyn); }
TcpPacket make_rst(const TcpPair& pair, std::uint32_t sequence) { return make_packet(pair, sequence, kRst); }

std::optional<TcpAnswer> parse_answer(std::span<const std::byte> packet) {
  const auto ip = wire::parse_ipv4(packet, false);
  TcpHeader tcp;
  if (!ip || ip->header.protocol != wire::kIpProtocolTcp || ip->header.is_fragment()) return std::nullopt;
  if (ip->payload.size() < sizeof tcp) return std::nullopt;
  std::memcpy(&tcp, ip->payload.data(), sizeof tcp);
  if ((tcp.flags & (kAck | kRst)) == 0) return std::nullopt;
  return TcpAnswer{.pair = {.source = std::bit_cast<std::uint32_t>(ip->header.destination),
                            .destination = std::bit_cast<std::uint32_t>(ip->header.source),
                            .source_port = std::bit_cast<std::uint16_t>(tcp.destination_port),
                            .destination_port = std::bit_cast<std::uint16_t>(tcp.source_port)},
                   .acknowledged = tcp.acknowledged.host(),
                   .is_reset = (tcp.flags & kRst) != 0};
}

void TcpResets::begin(const TcpPair& pair, Nanos now) {
  if (under_way_.size() < kMost) under_way_.try_emplace(pair, Attempt{.number = 0, .due = now});
}

void TcpResets::go_on(Nanos now) {
  for (auto entry = under_way_.begin(); entry != under_way_.end();) {
    auto& [pair, attempt] = *entry;
    if (attempt.due > now) {
      ++entry;
    } else if (attempt.number == kAttempts) {
      entry = under_way_.erase(entry);
    } else {
      send_(make_syn(pair), pair.destination);
      ++attempt.number;
      attempt.due = now + settings_.interval;
      ++entry;
    }
  }
}

Nanos TcpResets::next() const {
  Nanos earliest = Nanos::max();
  for (const auto& [pair, attempt] : under_way_) earliest = std::min(earliest, attempt.due);
  return earliest;
}

void TcpResets::received(std::span<const std::byte> packet) {
  if (under_way_.empty()) return;
  const auto answer = parse_answer(packet);
  const auto found = answer ? under_way_.find(answer->pair) : under_way_.end();
  if (found == under_way_.end()) return;
  if (settings_.forced && !answer->is_reset)
    send_(make_rst(answer->pair, answer->acknowledged), answer->pair.destination);
  under_way_.erase(found);
}

}  // namespace ringsock::tools
