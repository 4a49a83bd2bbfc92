// What a UDP socket receives first, a ring's datagram or the kernel's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/socket_address.h"
#include "core/device/shm/datagrams/incoming_rings.h"
#include "core/device/shm/datagrams/mark.h"

namespace ringsock::rs {

/// Each datagram of a ring tells how many of the sender's went by the kernel before it. Its ring waits until the
/// kernel's socket has given so many of them, or has lost them.
///
/// Threads: the caller's lock. The rings are those of one door, from begin() to end().
class KernelOrder {
 public:
  using Rings = soft::IncomingRings;
  using Ring = Rings::Ring;
  struct OfKernel {
    SocketAddress source;
    std::uint32_t drops;  ///< how many the socket had lost when it came, 0: none, or unknown
    soft::Place place;    ///< a mark, or a number (core/device/shm/datagrams/mark.h)
  };

  /// What the socket `fd` has lost until now is no matter of the rings.
  void begin(int fd);
  void end() { *this = {}; }

  /// Returns the ring's oldest datagram, unless it comes behind some of the kernel's that have not come yet.
  static std::optional<soft::ParsedDatagram> next_of(Ring& ring);
  /// Called before a look at all rings, for which is_turn_of() is asked.
  void begin_looks() { waits_ = false; }
  /// Returns whether it is the turn of the ring's oldest datagram. If not, the ring waits.
  bool is_turn_of(Ring& ring, const soft::ParsedDatagram& oldest);
  /// Returns whether a ring has waited at the last look.
  [[nodiscard]] bool has_waiting() const { return waits_; }
  /// Returns when a ring stops to wait, Nanos::max() if none waits.
  [[nodiscard]] Nanos wait_until() const { return wait_until_; }

  /// Called when the kernel's next datagram was looked at. What its source's ring may have waited for has come before
  /// it, or is lost.
  void next_is(Rings& rings, const OfKernel& next);
  /// Called when that datagram was taken. What the kernel had lost before a mark is no matter of the ring that begins
  /// there.
  void was_taken(Rings& rings, const OfKernel& one);
  /// Called when the kernel's socket was found empty after the rings had been looked at. A datagram that a ring waits
  /// for may be lost, or still be on its way: a busy kernel delivers later than sendmsg(2) returns. Returns whether a
  /// ring waits no longer.
  bool kernel_is_empty(int fd, Rings& rings);
  /// Lets all rings go on that wait for the kernel.
  void release(Rings& rings);

 private:
  void note_losses(int fd);
  void advance(Ring& ring, std::uint32_t number);
  void end_waits(Rings& rings, const Ring& next, soft::Place place);
  Nanos end_of_wait(Rings& rings, Ring& ring, Nanos now) const;

  bool waits_ = false;       ///< a ring has a datagram that comes behind some of the kernel's
  std::uint32_t drops_ = 0;  ///< of the kernel's socket, as far as they have been taken note of
  std::uint32_t lost_ = 0;   ///< those for which no ring has gone on yet
  Nanos wait_until_ = Nanos::max();
};

}  // namespace ringsock::rs
