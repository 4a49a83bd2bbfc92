// Receiving of the raw packet queue pair: from the ring into the posted receives.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/device/soft/key_table.h"
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

bool PacketQueuePair::receive_one(PacketCompletion& out) {
  while (!receives_.empty()) {
    if (segmented_) {
      if (deliver_segment(out)) return true;
      continue;
    }
    const RingFrame* frame = ring_->front();
    if (frame == nullptr) return false;
    PacketLayout layout;
    if (!accept_frame(*frame, layout)) {
      ring_->pop();
      continue;
    }
    if (needs_segments(*frame, layout)) {
      segmented_.emplace(Segmented{{frame->bytes.first(layout.payload), layout, frame->segment_bytes}, frame});
      continue;
    }
    const bool delivered = deliver_frame(*frame, layout, out);
    ring_->pop();
    if (delivered) return true;
  }
  return false;
}

bool PacketQueuePair::accept_frame(const RingFrame& frame, PacketLayout& layout) {
  const auto parsed = parse_received(frame.bytes);
  if (!parsed) {
    count(parsed.error().code == EBADMSG ? rx_bad_checksum_ : rx_bad_length_);
    return false;
  }
  layout = *parsed;
  if (frame.has_valid_checksum || (frame.may_lack_checksum && has_partial_checksum(frame.bytes, layout)) ||
      has_valid_checksum(frame.bytes, layout))
    return true;
  count(rx_bad_checksum_);
  return false;
}

bool PacketQueuePair::needs_segments(const RingFrame& frame, const PacketLayout& layout) const {
  const std::uint32_t payload = layout.end - layout.payload;
  if (frame.segment_bytes == 0 || payload <= frame.segment_bytes) return false;
  if (!layout.is_tcp) return true;
  const PostedReceive receive = receives_.front();
  return total_length(receive.sges, receive.sge_count) < layout.end + sizeof(wire::VlanTag);
}

bool PacketQueuePair::deliver_frame(const RingFrame& frame, const PacketLayout& layout, PacketCompletion& out) {
  const auto packet = frame.bytes.first(layout.end);
  if (!frame.vlan_control) return deliver({}, packet, frame.wallclock_ns, out);
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

bool PacketQueuePair::may_write(const PostedReceive& receive) const {
  const std::span sges(receive.sges, receive.sge_count);
  return std::ranges::all_of(sges, [this](const ibv_sge& sge) {
    return sge.length == 0 || keys_.covers(sge.lkey, pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE);
  });
}

bool PacketQueuePair::deliver(std::span<const std::byte> head, std::span<const std::byte> body,
                              std::uint64_t wallclock_ns, PacketCompletion& out) {
  const PostedReceive receive = receives_.front();
  const std::size_t bytes = head.size() + body.size();
  if (total_length(receive.sges, receive.sge_count) < bytes) {
    count(rx_too_long_);
    return false;
  }
  out = {.wr_id = receive.wr_id, .wallclock_ns = wallclock_ns, .qp_num = qp_num, .opcode = IBV_WC_RECV};
  if (!may_write(receive)) [[unlikely]] {
    receives_.pop();
    out.status = IBV_WC_LOC_PROT_ERR;
    enter_error();
    return true;
  }
  const std::span sges(receive.sges, receive.sge_count);
  scatter(head.data(), sges, 0, head.size());
  scatter(body.data(), sges, head.size(), body.size());
  receives_.pop();
  out.byte_len = static_cast<std::uint32_t>(bytes);
  out.wc_flags = IBV_WC_IP_CSUM_OK;
  count(rx_packets_);
  count(rx_bytes_, bytes);
  return true;
}

int PacketQueuePair::flush_receives(int count, PacketCompletion* out) {
  int got = 0;
  for (; got < count && !receives_.empty(); ++got) {
    out[got] = {
        .wr_id = receives_.front().wr_id, .qp_num = qp_num, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV};
    receives_.pop();
  }
  return got;
}

}  // namespace ringsock::soft
