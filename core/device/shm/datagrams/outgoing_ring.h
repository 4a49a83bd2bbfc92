// The sender's end of a ring to a UDP socket of this host.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/datagrams/knock.h"
#include "core/device/shm/datagrams/mark.h"
#include "core/device/shm/names/port_lookup.h"
#include "core/device/shm/queue/ud_ring.h"

namespace ringsock::soft {

/// Returns the UDP socket on this host that gets datagrams from `source` to `destination`, if it belongs to this
/// process's own user. Takes a few microseconds.
/// @param source, destination  canonical_address(), of one family
/// @param network_of  a socket of the network namespace in question
/// Errors: EACCES it is another user's; those of udp_socket_by_kernel(). Threads: any.
Result<KernelSocket> find_receiver(const SocketAddress& source, const SocketAddress& destination, int network_of);

/// Threads: the caller's lock.
class OutgoingRing {
 public:
  /// Knocks at the receiver's door, and need not wait for an answer: what is put into the ring is read once the
  /// receiver looks. Errors: ECONNREFUSED the socket has no door, EAGAIN too many knock, EACCES the door belongs to
  /// another user or PID namespace; those of make_segment() and sendmsg(2).
  /// @param receiver  of find_receiver()
  /// @param sender    we, as the receiver is to see us
  static Result<std::unique_ptr<OutgoingRing>> open(const KernelSocket& receiver, const KnockingSender& sender);
  OutgoingRing(const OutgoingRing&) = delete;
  OutgoingRing& operator=(const OutgoingRing&) = delete;
  /// What was put can still be read.
  ~OutgoingRing();

  [[nodiscard]] const KernelSocket& receiver() const { return receiver_; }

  enum class Put {
    done,
    early,   ///< the receiver has not looked at its door yet, or the mark has not come there yet
    marks,   ///< the next datagram by the kernel is to have a mark of next_mark(), behind which the ring begins
    asleep,  ///< the receiver sleeps: a datagram of the kernel's wakes it; has_not_woken() where that cannot be sent
    full,    ///< there is no room, and the receiver has made none for some 20 us
    gone,    ///< the receiver takes no more, or has ended: the ring is of no use any more
  };
  /// Adds a datagram of `bytes` in `parts`, at most kMaxRingDatagram. After all but `done` the receiver does not
  /// get it by the ring.
  /// @param after_kernel  how many datagrams the kernel has taken from us for the receiver behind the last mark
  Put put(std::uint32_t after_kernel, std::span<const iovec> parts, std::size_t bytes);

  /// Returns a mark for the next datagram that the kernel takes, after a put() that was answered by `marks`.
  /// @param last  the last mark of our socket, 0: none
  [[nodiscard]] Place next_mark(Place last) const;
  /// Called after the kernel has taken that datagram.
  void sent_mark(Place mark) { mark_ = mark; }
  /// Returns whether a mark was sent: the datagrams of the kernel behind it are numbered.
  [[nodiscard]] bool numbers_others() const { return mark_ != 0; }
  /// Called when no datagram has followed a put() that was answered by `asleep`.
  void has_not_woken() { ring_.give_arming_back(); }

  /// Returns whether the receiver has taken all that was put.
  [[nodiscard]] bool is_drained() const { return ring_.is_drained(); }

 private:
  OutgoingRing(const KernelSocket& receiver, UniqueFd link, std::shared_ptr<MappedSegment> segment)
      : receiver_(receiver), link_(std::move(link)), ring_(std::move(segment)) {}
  [[nodiscard]] bool is_there();
  [[nodiscard]] Put before_it_begins(std::uint32_t after_kernel);
  void wait_for_room(std::size_t bytes);
  [[nodiscard]] bool ring_bell() const;

  KernelSocket receiver_;
  UniqueFd link_;
  UdRingWriter ring_;
  Place mark_ = 0;               ///< the last one that was sent, 0: none
  bool has_begun_ = false;       ///< the mark has come: the receiver reads the ring
  std::uint64_t looked_at_ = 0;  ///< ticks(): when the receiver's life was last proven
};

}  // namespace ringsock::soft
