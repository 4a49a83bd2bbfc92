// Segments as they enter and leave the engine: header fields, raw options, payload. Addresses, ports and checksums
// belong to the caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// Bits of the TCP header (RFC 9293, 3.1).
enum Flag : std::uint8_t {
  kFin = 0x01,
  kSyn = 0x02,
  kRst = 0x04,
  kPsh = 0x08,
  kAck = 0x10,
  kUrg = 0x20,
  kEce = 0x40,
  kCwr = 0x80
};

inline constexpr std::size_t kMostOptionBytes = 40;
/// The largest payload of a descriptor with segmentation offload: with both headers it fits into 65,535 bytes.
inline constexpr std::uint32_t kMostPayloadBytes = 65'535 - 60 - 60;

/// A segment from the peer. The caller has verified its checksum and its length. Receive offload may have merged
/// several; `merged` is their number then.
struct SegmentIn {
  Seq seq = 0;
  Seq ack = 0;                          ///< counts when flags has kAck
  std::uint16_t window = 0;             ///< as it is in the header, not scaled
  std::uint16_t urgent = 0;             ///< counts when flags has kUrg
  std::uint8_t flags = 0;               ///< Flag bits
  bool congestion_experienced = false;  ///< the IP header has CE (RFC 3168)
  std::uint16_t merged = 1;
  std::span<const std::byte> options;  ///< 0..40 bytes behind the fixed header
  std::span<const std::byte> payload;
};

/// A segment that is to be sent, perhaps cut into packets by segmentation offload.
/// The spans point into the send queue: they are valid until the next call of a function of the connection that is not
/// const.
struct SegmentOut {
  Seq seq = 0;
  Seq ack = 0;
  std::uint16_t window = 0;  ///< scaled, in host byte order like all the others
  std::uint16_t urgent = 0;
  std::uint8_t flags = 0;
  std::uint8_t option_bytes = 0;  ///< a multiple of 4
  bool ecn_capable = false;       ///< the IP header may have ECT(0) (RFC 3168)
  /// Payload bytes of each packet but the last. Segmentation offload is needed when payload_bytes is larger.
  std::uint16_t segment_bytes = 0;
  std::uint32_t payload_bytes = 0;  ///< 0..kMostPayloadBytes, the sum of both spans
  std::array<std::byte, kMostOptionBytes> options{};
  std::array<std::span<const std::byte>, 2> payload{};  ///< the second one is often empty
};

}  // namespace ringsock::engine::tcp
