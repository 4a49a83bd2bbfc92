// The door of a UDP socket, and the rings of those who have knocked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/datagrams/sender_socket.h"
#include "core/device/shm/queue/ud_ring.h"

namespace ringsock::soft {

/// A listening AF_UNIX socket with an abstract name that senders compute from the UDP socket's SO_COOKIE, and the rings
/// that processes of the same user have passed there. Locks: none. Threads: the caller's lock.
class IncomingRings {
 public:
  /// Senders beyond these are told that the ring is closed.
  static constexpr std::size_t kMost = 512;

  struct Ring {
    UniqueFd link;  ///< the sender's; end of file once it has ended
    UdRingReader reader;
    SocketAddress source;  ///< canonical
    SenderSocket sender;
    // For the caller (OutgoingRing::put(), `after_kernel`):
    std::uint64_t serial = 0;       ///< greater than that of rings that came before
    bool is_known = false;          ///< the sender has been told so
    std::uint32_t from_kernel = 0;  ///< datagrams of the source that have come by the kernel behind the mark
    std::uint32_t awaited = 0;      ///< how many must have come before the ring's oldest, 0: it does not wait
    Nanos waits_since{};            ///< since the kernel's socket was first found empty
    bool is_over = false;           ///< the sender has ended: the ring goes once it is empty
  };

  /// Opens the door of the socket with that SO_COOKIE. Errors: EADDRINUSE it has one; those of socket(2), epoll(7).
  static Result<std::unique_ptr<IncomingRings>> open(std::uint64_t cookie);
  IncomingRings(const IncomingRings&) = delete;
  IncomingRings& operator=(const IncomingRings&) = delete;
  /// Senders find that their last datagrams were not taken.
  ~IncomingRings();

  /// Returns the descriptor that is readable when somebody knocks, rings (after arm()) or ends.
  [[nodiscard]] int fd() const { return events_.get(); }
  enum class Found {
    nothing,
    bells,  ///< rings may have datagrams, and nothing rings for these again: the caller looks at the rings afterwards
    new_rings,  ///< which are armed
  };
  /// Takes in who has knocked, and what was rung.
  Found look();
  /// Makes the next datagram of each ring make fd() readable. The caller looks at the rings once more.
  void arm();
  /// Undoes arm(), unless a sender was quicker: nobody sleeps, so nobody need be woken.
  void disarm();
  /// Takes in those who have knocked; nobody can knock any more.
  void shut_door();

  [[nodiscard]] bool empty() const { return rings_.empty(); }
  [[nodiscard]] std::vector<Ring>& rings() { return rings_; }
  /// Removes a ring that is over and empty, or whose sender has written nonsense. Others take its index.
  void remove(std::size_t index);

 private:
  IncomingRings(UniqueFd events, UniqueFd door) : events_(std::move(events)), door_(std::move(door)) {}
  static constexpr std::size_t kMostSilent = 64;

  void accept_links();
  Status watch(int fd);
  bool read_first_packet(int fd);
  void enter(Ring ring);
  bool read_bells(int fd);

  UniqueFd events_;  ///< an epoll file: the door, and the links
  UniqueFd door_;
  std::vector<UniqueFd> silent_;  ///< links whose first packet has not come yet
  std::vector<Ring> rings_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace ringsock::soft
