#include "core/device/soft/packet/packet_layout.h"

#include <cerrno>
#include <cstring>

#include "core/wire/ethernet.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::soft {

namespace {

constexpr std::size_t kTcpHeaderBytes = 20;
constexpr std::size_t kTcpOffsetAt = 12;
constexpr Error kNotOurs{EINVAL, "packet: headers"};

template <class Header>
Header read(std::span<const std::byte> bytes, std::size_t offset) {
  Header out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

/// Sets where the transport header begins and which it is.
Status read_ip(std::span<const std::byte> headers, std::uint16_t type, PacketLayout& layout) {
  std::uint8_t protocol = 0;
  std::size_t bytes = 0;
  bool is_fragment = false;
  const std::size_t left = headers.size() - layout.ip;
  if (type == wire::kEtherTypeIpv4 && left >= sizeof(wire::Ipv4Header)) {
    const auto ip = read<wire::Ipv4Header>(headers, layout.ip);
    bytes = ip.header_bytes();
    protocol = ip.protocol;
    is_fragment = ip.is_fragment();
    if (ip.version_and_words >> 4 != 4 || bytes < sizeof ip || bytes > left) return kNotOurs;
  } else if (type == wire::kEtherTypeIpv6 && left >= sizeof(wire::Ipv6Header)) {
    const auto ip = read<wire::Ipv6Header>(headers, layout.ip);
    bytes = sizeof ip;
    protocol = ip.next_header;
    layout.is_ipv6 = true;
    if (ip.version_class_flow.host() >> 28 != 6) return kNotOurs;
  } else {
    return kNotOurs;
  }
  layout.is_tcp = protocol == wire::kIpProtocolTcp;
  layout.has_transport = !is_fragment && (layout.is_tcp || protocol == wire::kIpProtocolUdp);
  layout.transport = static_cast<std::uint16_t>(layout.ip + bytes);
  return ok();
}

Status read_transport(std::span<const std::byte> headers, PacketLayout& layout) {
  std::size_t bytes = sizeof(wire::UdpHeader);
  if (layout.is_tcp) {
    if (headers.size() < layout.transport + kTcpHeaderBytes) return kNotOurs;
    bytes = std::to_integer<std::size_t>(headers[layout.transport + kTcpOffsetAt] >> 4) * 4;
    if (bytes < kTcpHeaderBytes) return kNotOurs;
  }
  if (headers.size() < layout.transport + bytes) return kNotOurs;
  layout.payload = static_cast<std::uint16_t>(layout.transport + bytes);
  return ok();
}

std::size_t udp_bytes(std::span<const std::byte> frame, const PacketLayout& layout) {
  return read<wire::UdpHeader>(frame, layout.transport).bytes.host();
}

}  // namespace

Result<PacketLayout> parse_network(std::span<const std::byte> headers) {
  PacketLayout layout;
  if (headers.size() < sizeof(wire::EthernetHeader)) return kNotOurs;
  std::uint16_t type = read<wire::EthernetHeader>(headers, 0).type.host();
  layout.ip = sizeof(wire::EthernetHeader);
  if (type == wire::kEtherTypeVlan) {
    if (headers.size() < layout.ip + sizeof(wire::VlanTag)) return kNotOurs;
    type = read<wire::VlanTag>(headers, layout.ip).type.host();
    layout.ip += sizeof(wire::VlanTag);
  }
  if (Status ip = read_ip(headers, type, layout); !ip) return ip.error();
  return layout;
}

Result<PacketLayout> parse_headers(std::span<const std::byte> headers, std::size_t frame_bytes) {
  auto layout = parse_network(headers);
  if (!layout) return layout;
  if (!layout->has_transport) return kNotOurs;
  if (Status transport = read_transport(headers, *layout); !transport) return transport.error();
  layout->end = static_cast<std::uint32_t>(frame_bytes);
  return layout;
}

Result<PacketLayout> parse_received(std::span<const std::byte> frame) {
  constexpr Error kContradiction{EPROTO, "packet: lengths"};
  auto layout = parse_headers(frame, frame.size());
  if (!layout) return Error{EPROTO, layout.error().where};
  std::size_t end = 0;
  if (layout->is_ipv6) {
    end = layout->transport + std::size_t{read<wire::Ipv6Header>(frame, layout->ip).payload_bytes.host()};
  } else {
    end = layout->ip + std::size_t{read<wire::Ipv4Header>(frame, layout->ip).total_bytes.host()};
    const auto header = frame.subspan(layout->ip, layout->transport - layout->ip);
    if (!wire::InternetSum().add(header).is_valid()) return Error{EBADMSG, "packet: ipv4 checksum"};
  }
  if (end < layout->payload || end > frame.size()) return kContradiction;
  layout->end = static_cast<std::uint32_t>(end);
  if (!layout->is_tcp) {
    const std::size_t bytes = udp_bytes(frame, *layout);
    if (bytes < sizeof(wire::UdpHeader) || layout->transport + bytes > end) return kContradiction;
  }
  return layout;
}

wire::InternetSum pseudo_header(std::span<const std::byte> frame, const PacketLayout& layout, std::uint32_t bytes) {
  const std::size_t addresses = layout.is_ipv6 ? 32 : 8;
  const std::size_t addresses_at = layout.is_ipv6 ? 8 : 12;
  wire::InternetSum sum;
  sum.add(frame.subspan(layout.ip + addresses_at, addresses));
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
