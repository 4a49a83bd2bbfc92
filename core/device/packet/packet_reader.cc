// What few packets need: other headers than plain UDP's, fragments, merged packets, tags.
#include "core/device/packet/packet_reader.h"

#include <cstring>
#include <new>

#include "core/device/packet/packet_reader_inline.h"
#include "core/wire/ethernet_frame.h"

namespace ringsock::soft {

[[gnu::noinline]] const RingFrame* PacketReader::accept_other(const RingFrame* frame) {
  wire::FrameLayout& layout = packet_.layout;
  layout = {};
  if (!wire::parsing::find_payload(frame->bytes, layout)) {
    if (!reassemble(*frame)) return nullptr;
    frame = &whole_;
    layout = {};
    if (!wire::parsing::find_payload(whole_.bytes, layout)) {
      count(bad_length_);
      return nullptr;
    }
  }
  return accept_found(*frame) ? frame : nullptr;
}

/// Returns whether the sum of a packet that nobody has checked is right.
bool PacketReader::has_right_sum(const RingFrame& frame) {
  if (frame.may_lack_checksum && wire::has_partial_checksum(frame.bytes, packet_.layout)) return true;
  if (wire::has_valid_checksum(frame.bytes, packet_.layout)) return true;
  count(bad_checksum_);
  return false;
}

/// Returns true when the fragment has completed its packet, which is then in whole_.
bool PacketReader::reassemble(const RingFrame& frame) try {
  wire::FrameLayout layout;
  const bool is_ip = wire::parsing::find_network(frame.bytes, layout);
  const auto fragment = wire::parse_fragment(frame.bytes, is_ip ? layout.ip : frame.bytes.size());
  if (!fragment) {
    count(bad_length_);
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
  count(too_long_);
  return false;
}

/// Puts the VLAN tag back into the headers.
void PacketReader::put_tag_back(std::uint16_t control) {
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
const ReceivedPacket* PacketReader::begin_segments(const RingFrame& frame) {
  const wire::FrameLayout layout = packet_.layout;
  segmented_.emplace(Segmented{{frame.bytes.first(layout.payload), layout, frame.segment_bytes}, layout, &frame});
  return show_segment();
}

const ReceivedPacket* PacketReader::show_segment() {
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

/// Returns true when it was the last one.
bool PacketReader::end_segment() {
  if (!segmented_->segments.done()) return false;
  segmented_.reset();
  return true;
}

void PacketReader::count_too_long() { count(too_long_); }

void PacketReader::add_to(verbs::PacketCounters& counters) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  counters.rx_packets = packets_.load(kRelaxed);
  counters.rx_bytes = bytes_.load(kRelaxed);
  counters.rx_bad_length = bad_length_.load(kRelaxed);
  counters.rx_bad_checksum = bad_checksum_.load(kRelaxed);
  counters.rx_too_long = too_long_.load(kRelaxed);
}

}  // namespace ringsock::soft
