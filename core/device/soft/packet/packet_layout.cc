#include "core/device/soft/packet/packet_layout.h"

#include <cerrno>
#include <cstring>

#include "core/device/soft/packet/packet_parse.h"

namespace ringsock::soft {

using namespace parsing;

namespace {

constexpr Error kNotOurs{EINVAL, "packet: headers"};
constexpr Error kContradiction{EPROTO, "packet: headers or lengths"};

}  // namespace

Result<PacketLayout> parse_network(std::span<const std::byte> headers) {
  PacketLayout layout;
  if (!find_network(headers, layout)) return kNotOurs;
  return layout;
}

Result<PacketLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes) {
  PacketLayout layout;
  if (!find_payload(headers, layout)) return kNotOurs;
  layout.end = static_cast<std::uint32_t>(frame_bytes);
  return layout;
}

Result<PacketLayout> parse_received(std::span<const std::byte> frame) {
  PacketLayout layout;
  if (!find_packet(frame, layout)) return kContradiction;
  if (!layout.is_ipv6 && !ipv4_header_sum(frame, layout).is_valid()) return Error{EBADMSG, "packet: ipv4 checksum"};
  return layout;
}

wire::InternetSum pseudo_header(std::span<const std::byte> frame, const PacketLayout& layout, std::uint32_t bytes) {
  const std::byte* const ip = frame.data() + layout.ip;
  wire::InternetSum sum;
  if (layout.is_ipv6) {
    sum.add_fixed<2 * sizeof(wire::Ipv6Address)>(ip + offsetof(wire::Ipv6Header, source));
  } else {
    sum.add_fixed<2 * sizeof(wire::Be32)>(ip + offsetof(wire::Ipv4Header, source));
  }
  sum.add(wire::Be16(layout.is_tcp ? wire::kIpProtocolTcp : wire::kIpProtocolUdp));
  sum.add(wire::Be16(static_cast<std::uint16_t>(bytes >> 16))).add(wire::Be16(static_cast<std::uint16_t>(bytes)));
  return sum;
}

bool has_valid_checksum(std::span<const std::byte> frame, const PacketLayout& layout) {
  const std::size_t bytes = layout.is_tcp ? layout.end - layout.transport : udp_bytes(frame, layout);
  const auto covered = frame.subspan(layout.transport, bytes);
  const auto checksum = read<wire::Be16>(covered, layout.checksum_offset());
  if (!layout.is_tcp && checksum == wire::Be16()) return !layout.is_ipv6;  // none: only IPv4 may do without
  wire::InternetSum sum = pseudo_header(frame, layout, static_cast<std::uint32_t>(bytes));
  return sum.add(covered).is_valid();
}

bool has_partial_checksum(std::span<const std::byte> frame, const PacketLayout& layout) {
  const std::size_t bytes = layout.is_tcp ? layout.end - layout.transport : udp_bytes(frame, layout);
  const auto checksum = read<wire::Be16>(frame.subspan(layout.transport, bytes), layout.checksum_offset());
  return checksum == pseudo_header(frame, layout, static_cast<std::uint32_t>(bytes)).folded();
}

bool has_right_checksums(std::span<const std::byte> frame) {
  const auto layout = parse_received(frame);
  return layout && (!layout->has_transport || has_valid_checksum(frame, *layout));
}

void fill_checksums(std::span<std::byte> frame) {
  const auto network = parse_network(frame);
  if (!network) return;
  if (!network->is_ipv6 && frame.size() >= network->ip + sizeof(wire::Ipv4Header)) {
    // With its options.
    const std::size_t bytes = std::size_t{4} * (std::to_integer<std::size_t>(frame[network->ip]) & 15);
    if (bytes < sizeof(wire::Ipv4Header) || network->ip + bytes > frame.size()) return;
    constexpr std::size_t kField = 10;
    std::memset(frame.data() + network->ip + kField, 0, sizeof(wire::Be16));
    const wire::Be16 checksum = wire::InternetSum().add(frame.subspan(network->ip, bytes)).checksum();
    std::memcpy(frame.data() + network->ip + kField, &checksum, sizeof checksum);
  }
  const auto layout = parse_headers(frame, frame.size());
  if (!layout || !layout->has_transport) return;
  std::byte* const field = frame.data() + layout->transport + layout->checksum_offset();
  std::memset(field, 0, sizeof(wire::Be16));
  const auto bytes = static_cast<std::uint32_t>(frame.size() - layout->transport);
  const wire::Be16 checksum =
      wire::sent_udp_checksum(pseudo_header(frame, *layout, bytes).add(frame.subspan(layout->transport)));
  std::memcpy(field, &checksum, sizeof checksum);
}

}  // namespace ringsock::soft
