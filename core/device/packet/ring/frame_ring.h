// What a ring of either kind is to its queue pair: received frames in order, and a way to send.
#pragma once

#include <linux/if_ether.h>
#include <sys/uio.h>

// Its field `class` stands in the way of C++.
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

enum class RingKind;  // packet_device.h

/// Of virtio_net_hdr::gso_type; Linux 6.2 and its headers.
inline constexpr std::uint8_t kGsoUdpSegments = 5;

/// A frame as it lies in the ring. Its contents are the network's, or the kernel's, and do not change meanwhile.
struct RingFrame {
  std::span<const std::byte> bytes;           ///< from the Ethernet header on, without the tag in `vlan_control`
  std::optional<std::uint16_t> vlan_control;  ///< of a tag that was taken off
  /// Somebody has looked at the transport's checksum, or the sender is on this host and left it out.
  bool has_valid_checksum = false;
  /// The sender may be on this host and have left the checksum out, without anybody telling: then the field holds the
  /// sum of the pseudo header.
  bool may_lack_checksum = false;
  std::uint16_t segment_bytes = 0;  ///< of payload, when this is several packets in one; 0: it is one
  std::uint64_t wallclock_ns = 0;   ///< CLOCK_REALTIME of arrival
};

/// A frame to be sent: `parts` one after the other. The first begins with a virtio_net_hdr, which tells what of
/// checksum and segmentation is still to be done.
using OutgoingFrame = std::span<const iovec>;

/// Threads: front(), pop() and look() one at a time; sends and counters() from any thread at any time.
class FrameRing {
 public:
  virtual ~FrameRing() = default;

  /// The oldest frame; null when there is none. Valid until pop().
  virtual const RingFrame* front() = 0;
  virtual void pop() = 0;

  /// Sends in order. @return how many, at least 1; a frame that the interface had no room for is lost, counts as sent,
  /// and is counted. Errors, of the first frame: EAGAIN, EMSGSIZE, ENETDOWN, ENODEV, EINVAL.
  virtual Result<std::size_t> send(std::span<const OutgoingFrame> frames) = 0;
  /// The same of one frame that is in one piece.
  virtual Status send_piece(const iovec& frame);

  /// Readable, while somebody listens, when a frame waits, or something has happened that look() tells. -1 after
  /// forget().
  [[nodiscard]] virtual int descriptor() const = 0;
  /// To be called before and after descriptor() is waited for. False: it cannot be, EMFILE and the like. Any thread.
  virtual bool listen(bool /*on*/) { return true; }
  /// Readable while the ring fills and nobody takes frames (ring_alarm.h); -1 where nobody tells.
  [[nodiscard]] virtual std::array<int, 2> alarms() const { return {-1, -1}; }
  /// Before frames are taken because of it. Any thread.
  virtual void silence_alarms() {}
  /// Takes what has happened to the interface. False: it is gone.
  virtual bool look() = 0;

  struct Counters {
    std::uint64_t ring_full = 0;
    std::uint64_t tx_dropped = 0;
    std::uint64_t rx_system_calls = 0;
    std::uint64_t tx_system_calls = 0;
  };
  virtual Counters counters() = 0;
  /// The ring's number among those of its maker, 1..
  [[nodiscard]] virtual unsigned number() const = 0;
  /// In a forked child: closes its copies.
  virtual void forget() = 0;
};

inline Status FrameRing::send_piece(const iovec& frame) {
  const OutgoingFrame pieces(&frame, 1);
  const auto sent = send({&pieces, 1});
  return sent ? ok() : sent.error();
}

/// Makes rings on one interface, and keeps the kernel from seeing what they take. Outlives its rings.
/// Threads: any.
class RingMaker {
 public:
  virtual ~RingMaker() = default;
  /// `frames`: how many small ones should fit. Errors: EPERM, ENODEV, ENOMEM, EMFILE, EBUSY, ENOSPC (256 rings).
  virtual Result<std::unique_ptr<FrameRing>> make_ring(unsigned frames) = 0;
  virtual FlowTable& flows() = 0;
  /// Of the next ring.
  [[nodiscard]] virtual RingKind kind() const = 0;
  /// For a ring that is gone.
  virtual void release(unsigned number) = 0;
  virtual void forget() = 0;
};

}  // namespace ringsock::soft
