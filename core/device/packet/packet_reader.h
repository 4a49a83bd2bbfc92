// The packets in a ring, as the receiving side of a queue pair sees them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/device/packet/ring/frame_ring.h"
#include "core/device/packet/ring/packet_segments.h"
#include "core/verbs/device.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_layout.h"
#include "core/wire/reassembler.h"

namespace ringsock::soft {

/// A received packet in two pieces, with right lengths and checksums.
struct ReceivedPacket {
  std::span<const std::byte> headers;  ///< from Ethernet to UDP or TCP, with the VLAN tag
  std::span<const std::byte> payload;  ///< up to the end according to the IP header
  wire::FrameLayout layout;
  std::uint64_t wallclock_ns = 0;  ///< CLOCK_REALTIME of arrival
};

/// Finds the packets in the frames of a ring: drops what has a wrong length or checksum, puts fragments together, and
/// takes merged packets apart. Threads: one at a time; add_to() any.
class PacketReader {
 public:
  explicit PacketReader(FrameRing& ring) : ring_(ring) {}

  /// Returns the oldest packet, or null. Packets that the kernel has merged are shown one by one; TCP packets only when
  /// they are longer than `room`. The next call shows it again until release() is called. packet_reader_inline.h.
  const ReceivedPacket* show(std::size_t room);
  void release() {
    if (!segmented_ || end_segment()) [[likely]]
      ring_.pop();
  }
  /// Returns whether a frame has been delivered in part: the ring's descriptor does not tell of its rest.
  [[nodiscard]] bool has_rest() const { return segmented_.has_value(); }
  /// Called in a forked child: the ring is the parent's.
  void forget() { segmented_.reset(); }

  void count_received(const ReceivedPacket& packet);
  /// Counts a packet that was dropped because there was no room for it.
  void count_too_long();
  void add_to(verbs::PacketCounters& counters) const;

 private:
  /// A frame that contains several packets, and how many of them have been delivered.
  struct Segmented {
    PacketSegments segments;
    wire::FrameLayout layout;
    const RingFrame* frame;
  };
  /// Only one thread writes at a time, so no locked instruction is needed.
  static void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  const RingFrame* accept_frame(const RingFrame* frame);
  const RingFrame* accept_other(const RingFrame* frame);
  bool reassemble(const RingFrame& frame);
  bool accept_found(const RingFrame& frame);
  bool has_right_sum(const RingFrame& frame);
  const ReceivedPacket* begin_segments(const RingFrame& frame);
  const ReceivedPacket* show_segment();
  bool end_segment();
  void put_tag_back(std::uint16_t control);

  FrameRing& ring_;
  std::optional<Segmented> segmented_;
  ReceivedPacket packet_;
  std::unique_ptr<wire::Reassembler> reassembler_;  ///< made with the first fragment
  RingFrame whole_;                                 ///< the packet that it has completed last
  std::array<std::byte, wire::kMaxHeaderBytes + sizeof(wire::VlanTag)> tagged_headers_;

  // Written by the receiving thread, read by any thread.
  std::atomic<std::uint64_t> packets_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> bad_length_{0};
  std::atomic<std::uint64_t> bad_checksum_{0};
  std::atomic<std::uint64_t> too_long_{0};
};

}  // namespace ringsock::soft
