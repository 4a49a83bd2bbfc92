// The path of each packet, for the files that receive: inlined there.
#pragma once

#include "core/device/packet/packet_reader.h"
#include "core/wire/frame_parse.h"

namespace ringsock::soft {

/// Checks a frame whose headers have been found, except for its end.
[[gnu::always_inline]] inline bool PacketReader::accept_found(const RingFrame& frame) {
  wire::FrameLayout& layout = packet_.layout;
  if (!wire::parsing::find_end(frame.bytes, layout)) [[unlikely]] {
    count(bad_length_);
    return false;
  }
  if (!layout.is_ipv6 && !wire::parsing::ipv4_header_sum(frame.bytes, layout).is_valid()) [[unlikely]] {
    count(bad_checksum_);
    return false;
  }
  return frame.has_valid_checksum || has_right_sum(frame);
}

/// Fills packet_.layout in. Plain UDP is handled separately, with constant offsets. Returns the frame, or the packet
/// that it completes, or null.
[[gnu::always_inline]] inline const RingFrame* PacketReader::accept_frame(const RingFrame* frame) {
  if (!wire::parsing::is_plain_udp(frame->bytes)) [[unlikely]]
    return accept_other(frame);
  packet_.layout = wire::parsing::plain_udp();
  return accept_found(*frame) ? frame : nullptr;
}

[[gnu::always_inline]] inline const ReceivedPacket* PacketReader::show(std::size_t room) {
  if (segmented_) [[unlikely]]
    return show_segment();
  wire::FrameLayout& layout = packet_.layout;
  while (const RingFrame* const next = ring_.front()) {
    const RingFrame* const frame = accept_frame(next);
    if (frame == nullptr) [[unlikely]] {
      ring_.pop();
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

[[gnu::always_inline]] inline void PacketReader::count_received(const ReceivedPacket& packet) {
  count(packets_);
  count(bytes_, packet.layout.end);
}

}  // namespace ringsock::soft
