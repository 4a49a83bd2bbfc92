// Receiving of the raw packet queue pair: packets in the ring, and their way into posted receives.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/device/common/key_table.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/wire/ethernet.h"
#include "core/wire/frame_parse.h"

namespace ringsock::soft {

namespace {

/// Only one thread writes at a time, so no locked instruction is needed.
void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

// -- packets in the ring ---------------------------------------------------------------------------

[[gnu::always_inline]] inline bool PacketQueuePair::may_receive() const {
  const ibv_qp_state now = current_state();
  return now == IBV_QPS_RTS || now == IBV_QPS_RTR || now == IBV_QPS_SQD;
}

/// Plain UDP is handled separately, with constant offsets. Returns the frame, or the packet that it completes, or null.
[[gnu::always_inline]] inline const RingFrame* PacketQueuePair::accept_frame(const RingFrame* frame,
                                                                             wire::FrameLayout& layout) {
  if (!wire::parsing::is_plain_udp(frame->bytes)) [[unlikely]]
    return accept_other(frame, layout);
  layout = wire::parsing::plain_udp();
  return accept_found(*frame, layout) ? frame : nullptr;
}

[[gnu::noinline]] const RingFrame* PacketQueuePair::accept_other(const RingFrame* frame, wire::FrameLayout& layout) {
  layout = {};
  if (!wire::parsing::find_payload(frame->bytes, layout)) {
    if (!reassemble(*frame)) return nullptr;
    frame = &whole_;
    layout = {};
    if (!wire::parsing::find_payload(whole_.bytes, layout)) {
      count(rx_bad_length_);
      return nullptr;
    }
  }
  return accept_found(*frame, layout) ? frame : nullptr;
}

/// Returns true when the fragment has completed its packet, which is then in whole_.
bool PacketQueuePair::reassemble(const RingFrame& frame) try {
  wire::FrameLayout layout;
  const bool is_ip = wire::parsing::find_network(frame.bytes, layout);
  const auto fragment = wire::parse_fragment(frame.bytes, is_ip ? layout.ip : frame.bytes.size());
  if (!fragment) {
    count(rx_bad_length_);
    return false;
  }
  if (!reassembler_) reassembler_ = std::make_unique<wire::Reassembler>();
  whole_ = {.bytes = reassembler_->add(*fragment, Nanos(frame.wallclock_ns)),
            .vlan_control = frame.vlan_control,
            .has_valid_checksum = false,
            .may_lack_checksum = false,
            .segment_bytes = 0,
            .wallclock_ns = frame.wallclock_ns};
  return !whole_.bytes.empty();
} catch (const std::bad_alloc&) {
  count(rx_too_long_);
  return false;
}

/// Checks a frame whose headers have been found, except for its end.
[[gnu::always_inline]] inline bool PacketQueuePair::accept_found(const RingFrame& frame, wire::FrameLayout& layout) {
  if (!wire::parsing::find_end(frame.bytes, layout)) [[unlikely]] {
    count(rx_bad_length_);
    return false;
  }
  if (!layout.is_ipv6 && !wire::parsing::ipv4_header_sum(frame.bytes, layout).is_valid()) [[unlikely]] {
    count(rx_bad_checksum_);
    return false;
  }
  if (frame.has_valid_checksum || (frame.may_lack_checksum && wire::has_partial_checksum(frame.bytes, layout)) ||
      wire::has_valid_checksum(frame.bytes, layout))
    return true;
  count(rx_bad_checksum_);
  return false;
}

/// Puts the VLAN tag back into the headers.
void PacketQueuePair::put_tag_back(std::uint16_t control) {
  constexpr std::size_t kAddressBytes = 12, kTagBytes = sizeof(wire::VlanTag);
  const wire::Be16 type(wire::kEtherTypeVlan), tag(control);
  const std::span<const std::byte> headers = packet_.headers;
  std::byte* const to = tagged_headers_.data();
  std::memcpy(to, headers.data(), kAddressBytes);
  std::memcpy(to + kAddressBytes, &type, sizeof type);
  std::memcpy(to + kAddressBytes + sizeof type, &tag, sizeof tag);
  std::memcpy(to + kAddressBytes + kTagBytes, headers.data() + kAddressBytes, headers.size() - kAddressBytes);
  packet_.headers = {to, headers.size() + kTagBytes};
  packet_.layout.ip += kTagBytes;
  packet_.layout.transport += kTagBytes;
  packet_.layout.payload += kTagBytes;
  packet_.layout.end += kTagBytes;
}

/// Shows the first packet of a frame that contains several.
const ReceivedPacket* PacketQueuePair::begin_segments(const RingFrame& frame) {
  const wire::FrameLayout layout = packet_.layout;
  segmented_.emplace(Segmented{{frame.bytes.first(layout.payload), layout, frame.segment_bytes}, layout, &frame});
  return show_segment();
}

const ReceivedPacket* PacketQueuePair::show_segment() {
  const RingFrame& frame = *segmented_->frame;
  const PacketSegments::Segment segment = segmented_->segments.next();
  packet_.headers = segment.headers;
  packet_.payload = frame.bytes.subspan(segment.payload_at, segment.payload_bytes);
  packet_.layout = segmented_->layout;
  packet_.layout.end = static_cast<std::uint32_t>(segment.headers.size() + segment.payload_bytes);
  packet_.layout.payload_bytes = static_cast<std::uint32_t>(segment.payload_bytes);
  packet_.wallclock_ns = frame.wallclock_ns;
  if (frame.vlan_control) put_tag_back(*frame.vlan_control);
  return &packet_;
}

[[gnu::always_inline]] inline const ReceivedPacket* PacketQueuePair::next_packet(std::size_t room) {
  if (segmented_) [[unlikely]]
    return show_segment();
  wire::FrameLayout& layout = packet_.layout;
  while (const RingFrame* const next = ring_->front()) {
    const RingFrame* const frame = accept_frame(next, layout);
    if (frame == nullptr) [[unlikely]] {
      ring_->pop();
      continue;
    }
    if (frame->segment_bytes != 0 && layout.end - layout.payload > frame->segment_bytes &&
        (!layout.is_tcp() || layout.end + sizeof(wire::VlanTag) > room)) [[unlikely]]
      return begin_segments(*frame);
    packet_.headers = frame->bytes.first(layout.payload);
    packet_.payload = frame->bytes.subspan(layout.payload, layout.end - layout.payload);
    packet_.wallclock_ns = frame->wallclock_ns;
    if (frame->vlan_control) [[unlikely]]
      put_tag_back(*frame->vlan_control);
    return &packet_;
  }
  return nullptr;
}

const ReceivedPacket* PacketQueuePair::take_packet(std::size_t room) {
  if (!may_receive()) [[unlikely]]
    return nullptr;
  const ReceivedPacket* const packet = next_packet(room);
  if (packet != nullptr) count_received(*packet);
  return packet;
}

/// Returns true when it was the last one.
bool PacketQueuePair::end_segment() {
  if (!segmented_->segments.done()) return false;
  segmented_.reset();
  return true;
}

[[gnu::always_inline]] inline void PacketQueuePair::count_received(const ReceivedPacket& packet) {
  count(rx_packets_);
  count(rx_bytes_, packet.layout.end);
}

// -- into posted receives --------------------------------------------------------------------------

[[gnu::always_inline]] inline bool PacketQueuePair::may_write(const PostedReceive& receive) const {
  for (const ibv_sge& sge : std::span(receive.sges, receive.sge_count)) {
    if (sge.length != 0 && !keys_.covers(sge.lkey, pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) return false;
  }
  return true;
}

/// Completes the oldest receive. Returns false when the packet is dropped because it is longer than the receive.
[[gnu::always_inline]] inline bool PacketQueuePair::complete_receive(const ReceivedPacket& packet,
                                                                     PacketCompletion& out) {
  const PostedReceive receive = receives_.front();
  const std::span sges(receive.sges, receive.sge_count);
  if (length_of(sges) < packet.layout.end) {
    count(rx_too_long_);
    return false;
  }
  out = {.wr_id = receive.wr_id,
         .wallclock_ns = packet.wallclock_ns,
         .byte_len = packet.layout.end,
         .qp_num = qp_num,
         .status = IBV_WC_SUCCESS,
         .opcode = IBV_WC_RECV,
         .vendor_err = 0,
         .wc_flags = IBV_WC_IP_CSUM_OK};
  const bool may = may_write(receive);
  if (may) [[likely]] {
    scatter(packet.headers.data(), sges, 0, packet.headers.size());
    scatter(packet.payload.data(), sges, packet.headers.size(), packet.payload.size());
  }
  receives_.pop();
  if (!may) [[unlikely]] {
    out.status = IBV_WC_LOC_PROT_ERR;
    enter_error();
    return true;
  }
  count_received(packet);
  return true;
}

[[gnu::always_inline]] inline bool PacketQueuePair::receive_one(PacketCompletion& out) {
  while (!receives_.empty()) {
    const PostedReceive receive = receives_.front();
    const ReceivedPacket* const packet = next_packet(total_length(receive.sges, receive.sge_count));
    if (packet == nullptr) return false;
    const bool is_complete = complete_receive(*packet, out);
    release_packet();
    if (is_complete) return true;
  }
  return false;
}

int PacketQueuePair::poll_receives(int count, PacketCompletion* out) {
  if (current_state() == IBV_QPS_ERR) return flush_receives(count, out);
  int got = 0;
  if (!may_receive()) return got;
  while (got < count && receive_one(out[got])) ++got;
  return got;
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
