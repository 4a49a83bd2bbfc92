// The interface of a ring of either kind for its queue pair: received frames in order, and sending.
#pragma once

#include <linux/if_ether.h>
#include <sys/uio.h>

// The header has a field named `class`, which is a keyword of C++.
#define class class_
#include <linux/virtio_net.h>
#undef class

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/device/packet/steering/flow_table.h"

namespace ringsock::soft {

enum class RingKind;  // ring/packet_options.h

/// A value of virtio_net_hdr::gso_type, which needs Linux 6.2 and its headers.
inline constexpr std::uint8_t kGsoUdpSegments = 5;

/// A frame in the ring. Its contents come from the network or the kernel, and do not change while it is shown.
struct RingFrame {
  std::span<const std::byte> bytes;           ///< from the Ethernet header on, without the tag in `vlan_control`
  std::optional<std::uint16_t> vlan_control;  ///< of a tag that was removed
  /// The checksum of UDP or TCP has been checked, or a sender on this host has not filled it in.
  bool has_valid_checksum = false;
  /// A sender on this host may not have filled in the checksum, and the kernel does not say so: then the field holds
  /// the sum of the pseudo header.
  bool may_lack_checksum = false;
  std::uint16_t segment_bytes = 0;  ///< of payload in each packet, when the frame contains several; 0: one packet
  std::uint64_t wallclock_ns = 0;   ///< CLOCK_REALTIME of arrival
};

/// A frame to send: `parts` in sequence. The first part begins with a virtio_net_hdr, which says what remains to be
/// done for checksum and segmentation.
using OutgoingFrame = std::span<const iovec>;

/// Threads: front(), pop() and look() one at a time; sends and counters() from any thread at any time.
class FrameRing {
 public:
  virtual ~FrameRing() = default;

  /// Returns the oldest frame, or null. Valid until pop().
  virtual const RingFrame* front() = 0;
  virtual void pop() = 0;

  /// Sends frames in order. Returns how many, at least 1. A frame that the interface has no room for is lost and
  /// counted; it is included in the result. Errors, for the first frame: EAGAIN, EMSGSIZE, ENETDOWN, ENODEV, EINVAL.
  virtual Result<std::size_t> send(std::span<const OutgoingFrame> frames) = 0;
  /// Sends one frame that is in one piece.
  virtual Status send_piece(const iovec& frame);

  /// While listening, the descriptor is readable when a frame waits, or when look() would find a change. -1 after
  /// forget().
  [[nodiscard]] virtual int descriptor() const = 0;
  /// Called before and after waiting for descriptor(). Returns false when it cannot be waited for (EMFILE and the
  /// like). Threads: any.
  virtual bool listen(bool /*on*/) { return true; }
  /// Descriptors that are readable when the ring fills and no frames are taken (ring_alarm.h); -1: none.
  [[nodiscard]] virtual std::array<int, 2> alarms() const { return {-1, -1}; }
  /// Called before frames are taken because of an alarm. Threads: any.
  virtual void silence_alarms() {}
  /// Notes changes of the interface. Returns false when it is gone.
  virtual bool look() = 0;

  struct Counters {
    std::uint64_t ring_full = 0;
    std::uint64_t tx_dropped = 0;
    std::uint64_t rx_system_calls = 0;
    std::uint64_t tx_system_calls = 0;
  };
  virtual Counters counters() = 0;
  /// The ring's number among the rings of its maker, from 1.
  [[nodiscard]] virtual unsigned number() const = 0;
  /// Called in a forked child: closes the child's copies of the descriptors.
  virtual void forget() = 0;
};

inline Status FrameRing::send_piece(const iovec& frame) {
  const OutgoingFrame pieces(&frame, 1);
  const auto sent = send({&pieces, 1});
  return sent ? ok() : sent.error();
}

/// Makes rings on one interface, and keeps the packets that they take from the kernel. Outlives its rings. Threads:
/// any.
class RingMaker {
 public:
  virtual ~RingMaker() = default;
  /// `frames`: the number of small frames that should fit. Errors: EPERM, ENODEV, ENOMEM, EMFILE, EBUSY, ENOSPC (256
  /// rings).
  virtual Result<std::unique_ptr<FrameRing>> make_ring(unsigned frames) = 0;
  virtual FlowTable& flows() = 0;
  /// The kind of the next ring.
  [[nodiscard]] virtual RingKind kind() const = 0;
  /// Called when a ring has been destroyed.
  virtual void release(unsigned number) = 0;
  virtual void forget() = 0;
};

}  // namespace ringsock::soft
