// Separates a packet that contains several: one for segmentation by the device (TSO, UDP_SEGMENT), or one merged by the
// kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/wire/frame_layout.h"

namespace ringsock::soft {

/// Iterates over the segments of one packet, whose headers must exist until the last segment.
class PacketSegments {
 public:
  /// `headers`: the bytes up to layout.payload. `segment_bytes`: payload bytes of each segment but the last, at least
  /// 1.
  PacketSegments(std::span<const std::byte> headers, const wire::FrameLayout& layout, std::uint32_t segment_bytes)
      : headers_(headers), layout_(layout), segment_bytes_(segment_bytes) {}

  [[nodiscard]] bool done() const { return offset_ >= payload_bytes(); }
  struct Segment {
    std::span<const std::byte> headers;  ///< complete; but the checksum of UDP or TCP is the sum of the pseudo header
    std::size_t payload_at;              ///< offset in the frame
    std::size_t payload_bytes;
  };
  /// Returns the next segment; must not be called when done(). Its headers are valid until the next call.
  Segment next();

 private:
  [[nodiscard]] std::uint32_t payload_bytes() const { return layout_.end - layout_.payload; }
  void patch_ip(std::size_t payload);
  void patch_udp(std::size_t payload);
  void patch_tcp(bool is_last);
  template <class Header, class Change>
  void change(std::size_t offset, Change change_header);

  std::span<const std::byte> headers_;
  wire::FrameLayout layout_;
  std::uint32_t segment_bytes_;
  std::uint32_t offset_ = 0;
  std::uint16_t index_ = 0;
  std::array<std::byte, wire::kMaxHeaderBytes> patched_;
};

}  // namespace ringsock::soft
