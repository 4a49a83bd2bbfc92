// What a UDP socket receives: datagrams of rings and of the kernel's socket.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/device/shm/datagrams/incoming_rings.h"
#include "librsocket/udp/backlog.h"
#include "librsocket/udp/kernel_order.h"

namespace ringsock::rs {

/// Order: the datagrams of one sender come in the order in which they were sent. A ring may have to wait for some of
/// the kernel's (KernelOrder). And where the kernel's next datagram is of a sender that has a ring, what was put into
/// the ring before it comes first, so the source is looked at before the datagram is taken.
///
/// A program that looks at a datagram (MSG_PEEK, FIONREAD) gets the same one afterwards.
///
/// Threads: the caller's lock. `fd` is the kernel's socket.
class UdpIntake {
 public:
  explicit UdpIntake(int domain) : domain_(domain) {}

  /// recvmsg(2), without waiting. Errors: EAGAIN; the kernel's.
  /// @param is_last_look  the caller does not come again soon: all places are looked at
  Result<ssize_t> receive(int fd, msghdr& message, int flags, bool is_last_look);
  /// Returns whether a call that waits is to do so by receive_waiting() instead of receive(): there are no rings, and
  /// no thread has been told that it may sleep on the descriptors of arm().
  [[nodiscard]] bool leaves_waiting_to_kernel() const {
    return !has_rings() && backlog_.empty() && !must_look_ && !counts_losses_;
  }
  /// Counts a call that waits in the kernel's recvmsg(2), as wait_for_kernel() does, without the lock. Nothing wakes it
  /// but the kernel's socket, so no ring is taken in meanwhile. Returns false where rings have or may have datagrams.
  [[nodiscard]] bool begin_waiting_in_kernel();
  /// Returns whether the kernel alone is asked for the next datagram, without the lock, by a call that does not wait.
  /// So threads that share the socket do not wait for each other. The call is counted in `calls_in_kernel`.
  [[nodiscard]] bool leaves_next_to_kernel() const { return !has_rings() && backlog_.empty() && !counts_losses_; }
  /// Called when such a call has found nothing. Returns whether receive() is to be asked: there are rings now.
  bool found_nothing_in_kernel(int fd);
  /// Called when such a call has taken a datagram.
  void received_by_waiting(int fd);
  /// FIONREAD: the bytes of the datagram that comes next.
  Result<int> unread_bytes(int fd);
  // Whether there is something to read is asked in three steps, so that no thread keeps the lock during a system call
  // for the kernel's part.
  /// Returns whether something waits that the kernel's socket does not have.
  bool is_known_readable();
  /// Returns whether to ask the kernel, too, although something is known to be readable.
  bool is_due_for_kernel();
  /// Called when the kernel's socket was found empty: looks at the door, and at what waits for the kernel. Returns
  /// whether there is something to read now.
  bool becomes_readable(int fd);
  /// Returns a descriptor that becomes readable when a ring has something, -1 without a door.
  int arm();
  void woken();
  struct News {
    bool must_arm = false;   ///< threads that sleep must arm the rings: there are new ones, or their bell was taken
    bool new_rings = false;  ///< rings were added
    bool shut_door = false;  ///< the next door may have its descriptor's number
  };
  /// Returns what has happened since the last call.
  [[nodiscard]] News take_news() {
    return {std::exchange(has_news_, false), std::exchange(has_new_rings_, false),
            std::exchange(has_shut_door_, false)};
  }

  /// Returns the door and the rings, null before there is a door.
  [[nodiscard]] soft::IncomingRings* door() const { return rings_.get(); }
  [[nodiscard]] bool has_rings() const { return rings_ && !rings_->empty(); }
  /// Returns when a ring stops to wait for the kernel, Nanos::max() if none waits.
  [[nodiscard]] Nanos wait_until() const { return order_.wait_until(); }
  /// Returns whether datagrams of rings wait that the kernel's socket does not have.
  [[nodiscard]] bool has_backlog() const { return !backlog_.empty(); }
  [[nodiscard]] bool may_have_rings() const { return may_have_rings_; }

  /// Called when connect(2) has given the socket a peer, or (unspecified) none. Others' datagrams that wait stay.
  void set_peer(int fd, const SocketAddress& peer);
  /// Ends all rings: what is in them waits here, and their senders use the kernel. The socket opens no door any more.
  void leave_rings(int fd);
  /// Drops all that waits, as close(2) does. Senders use the kernel.
  void close();
  /// What waits when the rings have ended.
  [[nodiscard]] Backlog& backlog() { return backlog_; }

  unsigned calls_in_kernel = 0;  ///< that are on their way in the kernel's socket; the caller counts their ends

 private:
  using Ring = soft::IncomingRings::Ring;
  struct Next {
    std::size_t ring;
    soft::ParsedDatagram datagram;
  };
  /// What a look has promised to be the next datagram.
  enum class Promised : std::uint8_t { nothing, rings, kernels };

  Result<ssize_t> receive_next(int fd, msghdr& message, int flags, bool is_last_look);
  void count_use(int fd);
  std::optional<Next> next_of_rings();
  Result<ssize_t> take_of_kernel(int fd, msghdr& message, int flags);
  Result<ssize_t> take_of_kernel_alone(int fd, msghdr& message, int flags);
  Result<ssize_t> take_of_ring(const Next& next, msghdr& message, int flags);
  std::optional<Next> next_before(const SocketAddress& source);
  void open_door(int fd);
  bool look_at_door(int fd, bool at_once);
  Result<KernelOrder::OfKernel> look_at_kernels_next(int fd);
  void close_rings(int fd);
  bool keep_one_of_kernel(int fd, std::span<std::byte> room);

  const int domain_;
  bool may_have_rings_ = true;
  bool has_news_ = false;
  bool has_new_rings_ = false;
  bool has_shut_door_ = false;
  bool is_armed_ = false;       ///< the kernel's next datagram is a bell
  bool is_bell_ = false;        ///< it has woken a thread
  bool must_look_ = false;      ///< a thread is about to sleep, or has slept
  bool was_woken_ = false;      ///< a descriptor of arm() was readable, and has not been looked at since
  bool has_released_ = false;   ///< the last look at the kernel's socket has ended such a wait
  bool counts_losses_ = false;  ///< the kernel's socket tells losses and places: the application did not ask for it
  KernelOrder order_;
  Promised promised_ = Promised::nothing;
  unsigned datagrams_ = 0;       ///< received before the door was opened
  unsigned looks_ = 0;           ///< at empty rings
  unsigned taken_of_rings_ = 0;  ///< since the last look at the kernel's socket
  // Whether rings are of use (count_use()):
  unsigned taken_ = 0;               ///< since the last decision
  std::uint64_t counts_since_ = 0;   ///< ticks()
  unsigned useless_times_ = 0;       ///< decisions against the rings, one after the other
  unsigned bells_ = 0;               ///< of these: have woken a thread, or would have
  std::uint64_t pause_ = 0;          ///< ticks(): the last time without rings
  std::uint64_t door_opens_at_ = 0;  ///< ticks(), 0: at once
  std::size_t next_ring_ = 0;
  std::uint64_t looked_at_door_ = 0;  ///< ticks()
  std::uint64_t pause_at_door_ = 0;   ///< ticks()
  SocketAddress peer_;                ///< of connect(2), canonical
  std::unique_ptr<soft::IncomingRings> rings_;
  Backlog backlog_;
};

// recvmsg(2) for the kernel's socket, by recv(2) where that can do the same: it costs a tenth of a microsecond less.
// They return -1 and set errno as those do. Threads: any.

/// Waits, between begin_waiting_in_kernel() and the end of that: by a call that pthread_cancel(3) may end, as it does
/// that of any other program.
ssize_t wait_for_kernel(int fd, msghdr& message, int flags);
/// Does not wait.
ssize_t ask_kernel(int fd, msghdr& message, int flags);

}  // namespace ringsock::rs
