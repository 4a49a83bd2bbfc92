// What a ring profile of type VMA_RING_CYCLIC_BUFFER describes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/result.h"

namespace ringsock::vma {

/// A buffer of `packets` strides. Each datagram is at the beginning of a stride of its own.
struct CyclicLayout {
  enum class Mode : std::uint32_t {
    raw,               ///< the whole frame, from Ethernet on
    strip_headers,     ///< the payload
    separate_headers,  ///< the payload; the network headers are in the area of headers
    padded,            ///< as raw, with zeros up to the stride's end
  };
  std::size_t packets = 0;
  std::size_t stride_bytes = 0;
  std::size_t user_header_bytes = 0;  ///< of the payload, which are in the area of headers instead
  Mode mode = Mode::raw;
  bool is_external = false;  ///< the application provides the memory: SO_VMA_RING_USER_MEMORY

  /// What network headers without options take: of IPv4, unless the socket is one of IPv6.
  std::size_t network_header_bytes = 14 + 20 + 8;

  /// The bytes of headers for each packet.
  [[nodiscard]] std::size_t header_stride_bytes() const {
    return (mode == Mode::separate_headers ? network_header_bytes : 0) + user_header_bytes;
  }
  [[nodiscard]] std::size_t payload_area_bytes() const { return packets * stride_bytes; }
  /// Returns the length of all memory: payloads, and headers behind them.
  [[nodiscard]] std::size_t bytes() const { return packets * (stride_bytes + header_stride_bytes()); }
};

}  // namespace ringsock::vma
