// Packets out of one that is several: what a sender left to the device (TSO, UDP_SEGMENT), or the kernel put together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/wire/frame_layout.h"

namespace ringsock::soft {

/// Goes through the segments of one packet. Its headers must be there until the last one.
class PacketSegments {
 public:
  /// `headers`: the bytes up to layout.payload. `segment_bytes`: payload of each but the last, 1..
  PacketSegments(std::span<const std::byte> headers, const wire::FrameLayout& layout, std::uint32_t segment_bytes)
      : headers_(headers), layout_(layout), segment_bytes_(segment_bytes) {}

  [[nodiscard]] bool done() const { return offset_ >= payload_bytes(); }
  struct Segment {
    std::span<const std::byte> headers;  ///< complete but for the transport's checksum, the sum of the pseudo header
    std::size_t payload_at;              ///< in the frame
    std::size_t payload_bytes;
  };
  /// The headers are valid until the next call. Only when not done().
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
