#include "core/device/packet/outgoing_batch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/device/common/scatter_gather.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/wire/frame_parse.h"

namespace ringsock::soft {

namespace {

template <class T>
void store(std::span<std::byte> bytes, std::size_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

constexpr std::size_t kIpv4LengthAt = 2;
constexpr std::size_t kIpv4ChecksumAt = 10;
constexpr std::size_t kIpv6LengthAt = 4;
constexpr std::size_t kUdpLengthAt = 4;

void set_ipv4_checksum(std::span<std::byte> headers, const wire::FrameLayout& layout) {
  store(headers, layout.ip + kIpv4ChecksumAt, wire::Be16());
  store(headers, layout.ip + kIpv4ChecksumAt, wire::parsing::ipv4_header_sum(headers, layout).checksum());
}

/// Sets the lengths of a packet that is to be segmented to those of the whole packet.
void set_lengths(std::span<std::byte> headers, const wire::FrameLayout& layout) {
  const std::size_t from = layout.is_ipv6 ? layout.transport : layout.ip;
  store(headers, layout.ip + (layout.is_ipv6 ? kIpv6LengthAt : kIpv4LengthAt),
        wire::Be16(static_cast<std::uint16_t>(layout.end - from)));
  if (!layout.is_tcp())
    store(headers, layout.transport + kUdpLengthAt,
          wire::Be16(static_cast<std::uint16_t>(layout.end - layout.transport)));
}

std::uint8_t gso_type(const wire::FrameLayout& layout) {
  if (!layout.is_tcp()) return kGsoUdpSegments;
  return layout.is_ipv6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4;
}

}  // namespace

/// Copies the start of the frame. Returns the frame's length.
[[gnu::always_inline]] inline std::size_t OutgoingBatch::collect(const ibv_send_wr& wr, std::span<std::byte> head,
                                                                 std::size_t& head_bytes) {
  const std::size_t prefix = wr.opcode == IBV_WR_TSO ? wr.tso.hdr_sz : 0;
  if (prefix != 0) std::memcpy(head.data(), wr.tso.hdr, prefix);
  std::size_t bytes = prefix;
  head_bytes = prefix;
  for (const ibv_sge& sge : sges_of(wr)) {
    const std::size_t part = std::min<std::size_t>(sge.length, head.size() - head_bytes);
    if (part != 0) std::memcpy(head.data() + head_bytes, reinterpret_cast<const std::byte*>(sge.addr), part);
    head_bytes += part;
    bytes += sge.length;
  }
  return bytes;
}

[[gnu::always_inline]] inline int OutgoingBatch::offload(const ibv_send_wr& wr, std::span<std::byte> headers,
                                                         std::size_t bytes, virtio_net_hdr& out) {
  const bool segment = wr.opcode == IBV_WR_TSO;
  if (!segment && (wr.send_flags & IBV_SEND_IP_CSUM) == 0) return 0;
  wire::FrameLayout layout;
  if (!wire::parsing::find_payload(headers, layout)) [[unlikely]] {
    // Another protocol, or a fragment: only the IPv4 header has a checksum.
    const auto network = wire::parse_network(headers);
    if (segment || !network) return EINVAL;
    if (!network->is_ipv6) set_ipv4_checksum(headers, *network);
    return 0;
  }
  layout.end = static_cast<std::uint32_t>(bytes);
  layout.payload_bytes = layout.end - layout.payload;
  if (segment && layout.payload != wr.tso.hdr_sz) return EINVAL;
  if (segment) set_lengths(headers, layout);
  if (!layout.is_ipv6) set_ipv4_checksum(headers, layout);
  store(headers, layout.transport + layout.checksum_offset(),
        wire::pseudo_header(headers, layout, layout.end - layout.transport).folded());
  out.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  out.csum_start = layout.transport;
  out.csum_offset = static_cast<std::uint16_t>(layout.checksum_offset());
  if (segment && layout.end - layout.payload > wr.tso.mss) {
    out.gso_type = gso_type(layout);
    out.gso_size = wr.tso.mss;
    out.hdr_len = layout.payload;
  }
  return 0;
}

std::size_t OutgoingBatch::list_parts(const ibv_send_wr& wr, Slot& slot, std::size_t head_bytes, std::size_t bytes) {
  std::size_t parts = 0;
  slot.parts[parts++] = {slot.head.data(), sizeof(virtio_net_hdr) + head_bytes};
  if (bytes == head_bytes) return parts;
  const std::size_t prefix = wr.opcode == IBV_WR_TSO ? wr.tso.hdr_sz : 0;
  for_each_part(sges_of(wr), head_bytes - prefix, bytes - head_bytes, [&](std::byte* part, std::size_t length) {
    slot.parts[parts++] = {part, length};
  });
  return parts;
}

int OutgoingBatch::add(ibv_send_wr& wr) {
  Slot& slot = slots_[size_];
  const auto head = std::span(slot.head).subspan(sizeof(virtio_net_hdr));
  std::size_t head_bytes = 0;
  const std::size_t bytes = collect(wr, head, head_bytes);
  virtio_net_hdr header{};
  if (const int error = offload(wr, head.first(head_bytes), bytes, header); error != 0) return error;
  std::memcpy(slot.head.data(), &header, sizeof header);
  const std::size_t parts = list_parts(wr, slot, head_bytes, bytes);
  std::construct_at(&frames_[size_], slot.parts.data(), parts);
  requests_[size_] = &wr;
  bytes_[size_] = bytes;
  ++size_;
  return 0;
}

}  // namespace ringsock::soft
