// What arrives at a packet ring: headers, checksums, segmentation. The first two bytes are the size of segments.
#include <cstdlib>
#include <cstring>

#include "core/device/packet/ring/packet_segments.h"
#include "core/wire/frame_ends.h"
#include "core/wire/frame_layout.h"
#include "core/wire/frame_parse.h"

namespace {

using ringsock::soft::PacketSegments;
using ringsock::wire::FrameLayout;
using namespace ringsock::wire::parsing;

void check(bool holds) {
  if (!holds) std::abort();
}

/// The short look at the headers finds what the long one does.
void compare_looks(std::span<const std::byte> frame) {
  FrameLayout found;
  const bool is_found = find_payload(frame, found);
  check(is_plain_udp(frame) == (is_found && found == plain_udp()));
}

void split(std::span<const std::byte> frame, const FrameLayout& layout, std::uint16_t segment_bytes) {
  PacketSegments segments(frame.first(layout.payload), layout, segment_bytes);
  std::size_t next = layout.payload;
  while (!segments.done()) {
    const PacketSegments::Segment segment = segments.next();
    // One after the other, without a gap, and none beyond the end.
    check(segment.payload_at == next && segment.payload_bytes != 0 && segment.payload_bytes <= segment_bytes);
    check(segment.headers.size() == layout.payload);
    next += segment.payload_bytes;
    check(next <= layout.end);
  }
  check(next == layout.end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint16_t segment_bytes = 0;
  if (size < sizeof segment_bytes) return 0;
  std::memcpy(&segment_bytes, data, sizeof segment_bytes);
  const auto frame = std::as_bytes(std::span(data, size).subspan(sizeof segment_bytes));
  compare_looks(frame);
  const auto layout = ringsock::wire::parse_received(frame);
  if (!layout) return 0;
  check(layout->ip < layout->transport && layout->transport < layout->payload && layout->payload <= layout->end &&
        layout->end <= frame.size() && layout->payload <= ringsock::wire::kMaxHeaderBytes);
  check(layout->payload + layout->payload_bytes <= layout->end);
  has_valid_checksum(frame, *layout);
  // What lies beside the packet is not looked at.
  static_cast<void>(ringsock::wire::source_of(frame, *layout, 1));
  check(ringsock::wire::EndBytes(frame, *layout).are_in(frame, *layout));
  if (segment_bytes != 0) split(frame, *layout, segment_bytes);
  return 0;
}
