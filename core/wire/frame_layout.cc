#include "core/wire/frame_layout.h"

#include <cerrno>
#include <cstring>

#include "core/wire/frame_parse.h"

namespace ringsock::wire {

using namespace parsing;

namespace {

constexpr Error kNotOurs{EINVAL, "packet: headers"};
constexpr Error kContradiction{EPROTO, "packet: headers or lengths"};

}  // namespace

Result<FrameLayout> parse_network(std::span<const std::byte> headers) {
  FrameLayout layout;
  if (!find_network(headers, layout)) return kNotOurs;
  return layout;
}

Result<FrameLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes) {
  FrameLayout layout;
  if (!find_payload(headers, layout)) return kNotOurs;
  layout.end = static_cast<std::uint32_t>(frame_bytes);
  layout.payload_bytes = layout.end - layout.payload;
  return layout;
}

Result<FrameLayout> parse_received(std::span<const std::byte> frame) {
  FrameLayout layout;
  if (!find_packet(frame, layout)) return kContradiction;
  if (!has_valid_network_checksum(frame, layout)) return Error{EBADMSG, "packet: ipv4 checksum"};
  return layout;
}

InternetSum pseudo_header(std::span<const std::byte> frame, const FrameLayout& layout, std::uint32_t bytes) {
  const std::byte* const ip = frame.data() + layout.ip;
  InternetSum sum;
  if (layout.is_ipv6) {
    sum.add_fixed<2 * sizeof(Ipv6Address)>(ip + offsetof(Ipv6Header, source));
  } else {
    sum.add_fixed<2 * sizeof(Be32)>(ip + offsetof(Ipv4Header, source));
  }
  sum.add(Be16(layout.protocol));
  sum.add(Be16(static_cast<std::uint16_t>(bytes >> 16))).add(Be16(static_cast<std::uint16_t>(bytes)));
  return sum;
}

bool has_valid_network_checksum(std::span<const std::byte> frame, const FrameLayout& layout) {
  return layout.is_ipv6 || ipv4_header_sum(frame, layout).is_valid();
}

bool has_valid_checksum(std::span<const std::byte> frame, const FrameLayout& layout) {
  const auto covered = frame.subspan(layout.transport, layout.transport_bytes());
  const auto checksum = read<Be16>(covered, layout.checksum_offset());
  if (!layout.is_tcp() && checksum == Be16()) return !layout.is_ipv6;  // no checksum, which only IPv4 permits
  InternetSum sum = pseudo_header(frame, layout, layout.transport_bytes());
  return sum.add(covered).is_valid();
}

bool has_partial_checksum(std::span<const std::byte> frame, const FrameLayout& layout) {
  const auto checksum = read<Be16>(frame, layout.transport + layout.checksum_offset());
  return checksum == pseudo_header(frame, layout, layout.transport_bytes()).folded();
}

bool has_right_checksums(std::span<const std::byte> frame) {
  const auto layout = parse_received(frame);
  return layout && has_valid_checksum(frame, *layout);
}

void fill_checksums(std::span<std::byte> frame) {
  const auto network = parse_network(frame);
  if (!network) return;
  if (!network->is_ipv6 && frame.size() >= network->ip + sizeof(Ipv4Header)) {
    // Includes the options.
    const std::size_t bytes = std::size_t{4} * (std::to_integer<std::size_t>(frame[network->ip]) & 15);
    if (bytes < sizeof(Ipv4Header) || network->ip + bytes > frame.size()) return;
    constexpr std::size_t kField = 10;
    std::memset(frame.data() + network->ip + kField, 0, sizeof(Be16));
    const Be16 checksum = InternetSum().add(frame.subspan(network->ip, bytes)).checksum();
    std::memcpy(frame.data() + network->ip + kField, &checksum, sizeof checksum);
  }
  const auto layout = parse_headers(frame, frame.size());
  if (!layout) return;
  std::byte* const field = frame.data() + layout->transport + layout->checksum_offset();
  std::memset(field, 0, sizeof(Be16));
  const auto bytes = static_cast<std::uint32_t>(frame.size() - layout->transport);
  const Be16 checksum = sent_udp_checksum(pseudo_header(frame, *layout, bytes).add(frame.subspan(layout->transport)));
  std::memcpy(field, &checksum, sizeof checksum);
}

}  // namespace ringsock::wire
