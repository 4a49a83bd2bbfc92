// Receiving of the raw packet queue pair: from the ring into the posted receives.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/device/soft/key_table.h"
#include "core/device/soft/packet/packet_parse.h"
#include "core/device/soft/packet/packet_queue_pair.h"
#include "core/device/soft/scatter_gather.h"
#include "core/wire/ethernet.h"

namespace ringsock::soft {

namespace {

/// Only one thread writes at a time: no locked instruction.
void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

constexpr std::size_t kAddressBytes = 12;

/// Headers with the VLAN tag back in its place.
class TaggedHeaders {
 public:
  TaggedHeaders(std::span<const std::byte> headers, std::uint16_t control) {
    const wire::Be16 type(wire::kEtherTypeVlan), tag(control);
    std::byte* to = bytes_.data();
    std::memcpy(to, headers.data(), kAddressBytes);
    std::memcpy(to + kAddressBytes, &type, sizeof type);
    std::memcpy(to + kAddressBytes + sizeof type, &tag, sizeof tag);
    std::memcpy(to + kAddressBytes + sizeof type + sizeof tag, headers.data() + kAddressBytes,
                headers.size() - kAddressBytes);
    size_ = headers.size() + sizeof type + sizeof tag;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }

 private:
  std::array<std::byte, kMaxHeaderBytes + sizeof(wire::VlanTag)> bytes_;
  std::size_t size_;
};

}  // namespace

// What each frame goes through is one function.

[[gnu::always_inline]] inline bool PacketQueuePair::may_write(const PostedReceive& receive) const {
  for (const ibv_sge& sge : std::span(receive.sges, receive.sge_count)) {
    if (sge.length != 0 && !keys_.covers(sge.lkey, pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) return false;
  }
  return true;
}

/// Ends the oldest receive. False: dropped, since that is shorter than `bytes`.
template <class Write>
[[gnu::always_inline]] inline bool PacketQueuePair::complete_receive(std::size_t bytes, std::uint64_t wallclock_ns,
                                                                     PacketCompletion& out, Write write) {
  const PostedReceive receive = receives_.front();
  const std::span sges(receive.sges, receive.sge_count);
  if (length_of(sges) < bytes) {
    count(rx_too_long_);
    return false;
  }
  out = {.wr_id = receive.wr_id,
         .wallclock_ns = wallclock_ns,
         .byte_len = static_cast<std::uint32_t>(bytes),
         .qp_num = qp_num,
         .status = IBV_WC_SUCCESS,
         .opcode = IBV_WC_RECV,
         .vendor_err = 0,
         .wc_flags = IBV_WC_IP_CSUM_OK};
  const bool may = may_write(receive);
  if (may) [[likely]]
    write(sges);
  receives_.pop();
  if (!may) [[unlikely]] {
    out.status = IBV_WC_LOC_PROT_ERR;
    enter_error();
    return true;
  }
  count(rx_packets_);
  count(rx_bytes_, bytes);
  return true;
}

bool PacketQueuePair::deliver(std::span<const std::byte> head, std::span<const std::byte> body,
                              std::uint64_t wallclock_ns, PacketCompletion& out) {
  return complete_receive(head.size() + body.size(), wallclock_ns, out, [&](std::span<const ibv_sge> sges) {
    scatter(head.data(), sges, 0, head.size());
    scatter(body.data(), sges, head.size(), body.size());
  });
}

[[gnu::always_inline]] inline bool PacketQueuePair::deliver_frame(const RingFrame& frame, const PacketLayout& layout,
                                                                  PacketCompletion& out) {
  const auto packet = frame.bytes.first(layout.end);
  if (!frame.vlan_control) [[likely]] {
    return complete_receive(packet.size(), frame.wallclock_ns, out,
                            [&](std::span<const ibv_sge> sges) { scatter(packet.data(), sges, 0, packet.size()); });
  }
  const TaggedHeaders headers(packet.first(layout.payload), *frame.vlan_control);
  return deliver(headers.bytes(), packet.subspan(layout.payload), frame.wallclock_ns, out);
}

bool PacketQueuePair::deliver_segment(PacketCompletion& out) {
  const RingFrame& frame = *segmented_->frame;
  const PacketSegments::Segment segment = segmented_->segments.next();
  const auto payload = frame.bytes.subspan(segment.payload_at, segment.payload_bytes);
  bool delivered;
  if (frame.vlan_control) {
    const TaggedHeaders headers(segment.headers, *frame.vlan_control);
    delivered = deliver(headers.bytes(), payload, frame.wallclock_ns, out);
  } else {
    delivered = deliver(segment.headers, payload, frame.wallclock_ns, out);
  }
  if (segmented_->segments.done()) {
    segmented_.reset();
    ring_->pop();
  }
  return delivered;
}

[[gnu::always_inline]] inline bool PacketQueuePair::accept_frame(const RingFrame& frame, PacketLayout& layout) {
  if (!parsing::find_packet(frame.bytes, layout)) [[unlikely]] {
    count(rx_bad_length_);
    return false;
  }
  if (!layout.is_ipv6 && !parsing::ipv4_header_sum(frame.bytes, layout).is_valid()) [[unlikely]] {
    count(rx_bad_checksum_);
    return false;
  }
  if (frame.has_valid_checksum || (frame.may_lack_checksum && has_partial_checksum(frame.bytes, layout)) ||
      has_valid_checksum(frame.bytes, layout))
    return true;
  count(rx_bad_checksum_);
  return false;
}

[[gnu::always_inline]] inline bool PacketQueuePair::needs_segments(const RingFrame& frame,
                                                                   const PacketLayout& layout) const {
  const std::uint32_t payload = layout.end - layout.payload;
  if (frame.segment_bytes == 0 || payload <= frame.segment_bytes) return false;
  if (!layout.is_tcp) return true;
  const PostedReceive receive = receives_.front();
  return total_length(receive.sges, receive.sge_count) < layout.end + sizeof(wire::VlanTag);
}

[[gnu::always_inline]] inline bool PacketQueuePair::receive_one(PacketCompletion& out) {
  while (!receives_.empty()) {
    if (segmented_) [[unlikely]] {
      if (deliver_segment(out)) return true;
      continue;
    }
    const RingFrame* frame = ring_->front();
    if (frame == nullptr) return false;
    PacketLayout layout;
    if (!accept_frame(*frame, layout)) [[unlikely]] {
      ring_->pop();
      continue;
    }
    if (needs_segments(*frame, layout)) [[unlikely]] {
      segmented_.emplace(Segmented{{frame->bytes.first(layout.payload), layout, frame->segment_bytes}, frame});
      continue;
    }
    const bool delivered = deliver_frame(*frame, layout, out);
    ring_->pop();
    if (delivered) return true;
  }
  return false;
}

int PacketQueuePair::poll_receives(int count, PacketCompletion* out) {
  int got = 0;
  switch (current_state()) {
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
      while (got < count && receive_one(out[got])) ++got;
      return got;
    case IBV_QPS_ERR: return flush_receives(count, out);
    default: return 0;
  }
}

int PacketQueuePair::flush_receives(int count, PacketCompletion* out) {
  int got = 0;
  for (; got < count && !receives_.empty(); ++got) {
    out[got] = {.wr_id = receives_.front().wr_id,
                .wallclock_ns = 0,
                .byte_len = 0,
                .qp_num = qp_num,
                .status = IBV_WC_WR_FLUSH_ERR,
                .opcode = IBV_WC_RECV,
                .vendor_err = 0,
                .wc_flags = 0};
    receives_.pop();
  }
  return got;
}

}  // namespace ringsock::soft
