// A frame from anybody on the wire, as far as a receiver of ours reads it.
#include <cstdlib>
#include <cstring>

#include "core/wire/emit.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/tcp.h"
#include "core/wire/udp.h"

using namespace ringsock;
using namespace ringsock::wire;
using Bytes = std::span<const std::byte>;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void require_inside(Bytes part, Bytes whole) {
  require(part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size()));
}

void read_udp(Bytes bytes, const InternetSum& pseudo_header, UdpChecksumRule rule) {
  const auto datagram = parse_udp(bytes);
  if (!datagram) return;
  require_inside(datagram->whole, bytes);
  require(datagram->payload.size() + sizeof(UdpHeader) == datagram->header.bytes.host());
  // What is fine remains so when a router changes a port and the checksum with it.
  const bool fine = udp_checksum_is_fine(*datagram, pseudo_header, rule);
  if (!fine || datagram->header.checksum == Be16() || datagram->header.checksum == pseudo_header.folded()) return;
  UdpHeader changed = datagram->header;
  changed.source_port = Be16(static_cast<std::uint16_t>(changed.source_port.host() + 1));
  changed.checksum = update_checksum(changed.checksum, datagram->header.source_port, changed.source_port);
  require(InternetSum(pseudo_header).add(std::as_bytes(std::span(&changed, 1))).add(datagram->payload).is_valid());
}

void read_tcp(Bytes bytes, const InternetSum& pseudo_header) {
  const auto segment = parse_tcp(bytes);
  if (!segment) return;
  require_inside(segment->options, bytes);
  require_inside(segment->payload, bytes);
  require(segment->options.size() <= kMaxTcpOptionBytes);
  require(sizeof(TcpHeader) + segment->options.size() + segment->payload.size() == bytes.size());
  // What is right without a device's help is right with it.
  require(!tcp_checksum_is_fine(*segment, pseudo_header, false) || tcp_checksum_is_fine(*segment, pseudo_header, true));
}

void read_ipv4(Bytes bytes) {
  const auto packet = parse_ipv4(bytes, false);
  const auto verified = parse_ipv4(bytes, true);
  require(!verified || packet);
  if (!packet) return;
  require_inside(packet->options, bytes);
  require_inside(packet->payload, bytes);
  require(packet->header.fragment_offset() + packet->payload.size() <= kMaxIpv4Packet);
  if (valid_ipv4_options(packet->options)) require(packet->options.size() <= 40);
  const auto& header = packet->header;
  const auto length = static_cast<std::uint16_t>(packet->payload.size());
  read_udp(packet->payload, pseudo_header_sum(header.source, header.destination, header.protocol, length),
           UdpChecksumRule::partial_ipv4);
  read_tcp(packet->payload, pseudo_header_sum(header.source, header.destination, header.protocol, length));
}

void read_ipv6(Bytes bytes) {
  const auto packet = parse_ipv6(bytes);
  if (!packet) return;
  require_inside(packet->payload, bytes);
  const auto& header = packet->header;
  const Ipv6Header again = make_ipv6_header({.traffic_class = header.traffic_class(),
                                             .flow_label = header.flow_label(),
                                             .payload_bytes = header.payload_bytes.host(),
                                             .next_header = header.next_header,
                                             .hop_limit = header.hop_limit,
                                             .source = header.source,
                                             .destination = header.destination});
  require(std::memcmp(&again, bytes.data(), sizeof again) == 0);
  const auto length = static_cast<std::uint16_t>(packet->payload.size());
  read_udp(packet->payload, pseudo_header_sum(header.source, header.destination, header.next_header, length),
           UdpChecksumRule::partial_ipv6);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto frame = parse_ethernet(bytes);
  if (!frame) return 0;
  require_inside(frame->payload, bytes);
  if (frame->type == kEtherTypeIpv4) read_ipv4(frame->payload);
  if (frame->type == kEtherTypeIpv6) read_ipv6(frame->payload);
  return 0;
}
