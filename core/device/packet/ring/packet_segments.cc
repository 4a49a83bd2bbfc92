#include "core/device/packet/ring/packet_segments.h"

#include <algorithm>
#include <cstring>

#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::soft {

namespace {
constexpr std::size_t kTcpSequenceAt = 4;
constexpr std::size_t kTcpFlagsAt = 13;
constexpr std::byte kFinOrPush{0x09};
constexpr std::byte kCongestionWindowReduced{0x80};
}  // namespace

template <class Header, class Change>
void PacketSegments::change(std::size_t offset, Change change_header) {
  Header header;
  std::memcpy(&header, patched_.data() + offset, sizeof header);
  change_header(header);
  std::memcpy(patched_.data() + offset, &header, sizeof header);
}

PacketSegments::Segment PacketSegments::next() {
  const std::size_t payload = std::min(segment_bytes_, payload_bytes() - offset_);
  std::memcpy(patched_.data(), headers_.data(), layout_.payload);
  patch_ip(payload);
  if (layout_.is_tcp()) {
    patch_tcp(offset_ + payload == payload_bytes());
  } else {
    patch_udp(payload);
  }
  const std::span<const std::byte> headers(patched_.data(), layout_.payload);
  const auto transport_bytes = static_cast<std::uint32_t>(layout_.payload - layout_.transport + payload);
  change<wire::Be16>(layout_.transport + layout_.checksum_offset(), [&](wire::Be16& checksum) {
    checksum = wire::pseudo_header(headers, layout_, transport_bytes).folded();
  });
  const Segment out{headers, layout_.payload + std::size_t{offset_}, payload};
  offset_ += static_cast<std::uint32_t>(payload);
  ++index_;
  return out;
}

void PacketSegments::patch_ip(std::size_t payload) {
  const std::size_t after_ip = layout_.payload - layout_.transport + payload;
  if (layout_.is_ipv6) {
    change<wire::Ipv6Header>(
        layout_.ip, [&](wire::Ipv6Header& ip) { ip.payload_bytes = wire::Be16(static_cast<std::uint16_t>(after_ip)); });
    return;
  }
  const std::size_t header_bytes = layout_.transport - layout_.ip;
  change<wire::Ipv4Header>(layout_.ip, [&](wire::Ipv4Header& ip) {
    ip.total_bytes = wire::Be16(static_cast<std::uint16_t>(header_bytes + after_ip));
    ip.identification = wire::Be16(static_cast<std::uint16_t>(ip.identification.host() + index_));
    ip.checksum = wire::Be16();
  });
  // Includes the options.
  const auto sum = wire::InternetSum().add({patched_.data() + layout_.ip, header_bytes});
  change<wire::Ipv4Header>(layout_.ip, [&](wire::Ipv4Header& ip) { ip.checksum = sum.checksum(); });
}

void PacketSegments::patch_udp(std::size_t payload) {
  change<wire::UdpHeader>(layout_.transport, [&](wire::UdpHeader& udp) {
    udp.bytes = wire::Be16(static_cast<std::uint16_t>(sizeof udp + payload));
  });
}

void PacketSegments::patch_tcp(bool is_last) {
  change<wire::Be32>(layout_.transport + kTcpSequenceAt,
                     [&](wire::Be32& sequence) { sequence = wire::Be32(sequence.host() + offset_); });
  std::byte& flags = patched_[layout_.transport + kTcpFlagsAt];
  if (!is_last) flags &= ~kFinOrPush;
  if (index_ != 0) flags &= ~kCongestionWindowReduced;
}

}  // namespace ringsock::soft
