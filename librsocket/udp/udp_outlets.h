// Where a UDP socket sends: the destinations of late, and the rings to those that take part.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/base/biased_mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/device/shm/datagrams/outgoing_ring.h"

namespace ringsock::rs {

/// Chooses the ring or the kernel for each datagram. Nothing is ever sent to find a partner: the kernel tells which
/// socket has the port (soft::find_receiver()), and that socket has a door or not. A destination's first datagrams go
/// by the kernel, so that a socket for one question costs no more than without the library.
///
/// Order: each datagram of a ring tells how many went by the kernel before it, and the receiver keeps to that
/// (UdpIntake). Threads: the caller's lock.
class UdpOutlets {
 public:
  explicit UdpOutlets(int domain) : domain_(domain) {}

  /// sendmsg(2), without waiting. Errors: the kernel's.
  /// @param lock  the caller's, which is free while the kernel sends to a destination without a ring: threads that
  /// share
  ///              the socket do not wait for each other
  Result<ssize_t> send(int fd, const msghdr& message, int flags, std::unique_lock<BiasedMutex>& lock);
  /// Returns whether the peer of connect(2) has got datagrams by the kernel before, and has no ring: send_to_peer() may
  /// be called.
  [[nodiscard]] bool leaves_peer_to_kernel() const { return peers_ != nullptr && !peers_->second.ring; }
  /// send() to such a peer, in fewer steps. Errors: the kernel's.
  Result<ssize_t> send_to_peer(int fd, const void* data, std::size_t bytes, int flags);
  /// Called when the socket has got a peer, or (unspecified) none, or may have got another name: all rings end.
  void set_peer(const SocketAddress& peer);
  /// All rings end, and no more are opened.
  void leave_rings();
  [[nodiscard]] bool has_left_rings() const { return has_left_; }
  [[nodiscard]] std::size_t rings() const;

 private:
  static constexpr std::size_t kMost = 256;  ///< destinations without a ring that are remembered
  static constexpr std::size_t kMostRings = 512;

  struct Outlet {
    std::unique_ptr<soft::OutgoingRing> ring;
    SocketAddress source;         ///< with the ring: ours
    bool overflows = false;       ///< the ring was full: the kernel gets all until it is empty
    bool wakes = false;           ///< the receiver sleeps until the kernel has the datagram that is being sent
    bool marks = false;           ///< the datagram that is being sent has the mark of the ring
    std::uint32_t by_kernel = 0;  ///< OutgoingRing::put(): the last number
    std::uint32_t datagrams = 0;  ///< sent by the kernel, as long as that matters
    std::uint64_t look_at = 0;    ///< stamp(): when to look for a door, or whether the ring is the right one
    std::uint64_t patience = 0;   ///< stamps until the next look for a door
  };
  struct Hash {
    std::size_t operator()(const SocketAddress& address) const noexcept;
  };
  using Outlets = std::unordered_map<SocketAddress, Outlet, Hash>;

  Outlets::value_type* find(const msghdr& message);
  Outlets::value_type* outlet_to(const SocketAddress& to);
  Result<ssize_t> send_without_lock(int fd, const msghdr& message, int flags, std::unique_lock<BiasedMutex>& lock);
  bool put(int fd, Outlets::value_type& to, const msghdr& message, std::size_t bytes);
  static bool end_ring(Outlet& outlet);
  void sent_by_kernel(int fd, Outlets::value_type& to);
  ssize_t send_beside_ring(int fd, Outlets::value_type& to, const msghdr& message, int flags);
  void look_for_door(int fd, Outlets::value_type& to, std::uint64_t now);
  void open_ring(int fd, Outlets::value_type& to);
  bool leaves_to_kernel(const soft::KernelSocket& receiver, Outlet& outlet);
  [[nodiscard]] Result<SocketAddress> source_towards(int fd, const SocketAddress& to) const;
  void forget_names();

  const int domain_;
  bool has_left_ = false;
  unsigned sending_ = 0;       ///< send_without_lock() in other threads, of which a new ring would not know
  bool keeps_lock_ = false;    ///< until a ring has been opened: otherwise some thread might always be sending
  SocketAddress peer_;         ///< of connect(2), canonical
  soft::Place last_mark_ = 0;  ///< 0: none was sent
  Outlets outlets_;
  Outlets::value_type* peers_ = nullptr;  ///< that of peer_
  // The last name that was given, byte by byte.
  std::array<std::byte, sizeof(sockaddr_in6)> last_name_{};
  socklen_t last_length_ = 0;
  Outlets::value_type* last_ = nullptr;
};

}  // namespace ringsock::rs
