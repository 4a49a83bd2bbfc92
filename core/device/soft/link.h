// The AF_UNIX socket under a connection of the embedded device: doorbell, liveness, connection management.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// First byte of every packet on the socket. One packet, one message.
enum class LinkPacket : std::uint8_t {
  wake = 1,        ///< doorbell: "you armed, and something came". No more bytes
  request = 2,     ///< CM connect request
  reply = 3,       ///< CM reply
  reject = 4,      ///< CM reject
  disconnect = 5,  ///< CM disconnect request
};

inline constexpr std::size_t kMaxLinkPacket = 1024;
inline constexpr std::size_t kMaxLinkFds = 2;

/// One AF_UNIX SOCK_SEQPACKET connection. Nothing here blocks, whatever the socket's O_NONBLOCK says. It wakes a
/// sleeping peer (wake packets), tells of its death (end of file: the kernel closes a dead process's sockets), and
/// carries the few messages of the connection manager. One descriptor serves it all, so it is what a completion channel
/// and an event channel both wait on. Shared (std::shared_ptr) by the queue pair and the connection id; lives until
/// both are gone. Threads: all functions from any thread.
class Link {
 public:
  /// What drain() hands out, in order of arrival.
  struct Sink {
    virtual ~Sink() = default;
    /// A packet other than wake. `bytes` starts behind the type byte and is untrusted; take from `fds` what you keep.
    virtual void on_packet(LinkPacket type, std::span<const std::byte> bytes, std::span<UniqueFd> fds) = 0;
    /// One or more wake packets were read. Only the queue pair hears of it.
    virtual void on_wake() {}
    /// The peer has gone: closed, died or executed another program. Called once per sink.
    virtual void on_peer_gone() = 0;
  };

  explicit Link(UniqueFd socket);
  ~Link();

  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Rings the peer's doorbell. One system call; a full socket is already a rung doorbell; a dead peer is noticed by
  /// drain().
  void ring();
  /// Sends one packet of at most kMaxLinkPacket bytes, with at most kMaxLinkFds descriptors (SCM_RIGHTS).
  /// Errors: EAGAIN socket full, EPIPE or ECONNRESET peer gone, EMSGSIZE.
  Status send(LinkPacket type, std::span<const std::byte> bytes, std::span<const int> fds = {});
  /// Reads packets that are there, `at_most` (by default as many as a peer that never stops may keep us with), one
  /// recvmsg(2) each and one more to find that there are no more; what is left keeps the descriptor readable. Tells the
  /// sinks; at end of file both hear on_peer_gone(). A packet that arrives while no manager is set is kept for it.
  /// @return whether the peer had rung: what it rang for is in the ring, and nobody else will be told of it.
  bool drain(int at_most = 128);
  [[nodiscard]] bool peer_gone() const { return peer_gone_.load(std::memory_order_acquire); }
  /// Moves the socket to the descriptor number `fd`, closing what was open there. Before others use fd().
  Status move_to(int fd);
  /// Another process goes on with its copy of the socket: nothing is sent, read or shut down here any more.
  /// @param give_away  its descriptor is closed by somebody else.
  void abandon(bool give_away);
  /// shutdown(2) both ways: the peer sees end of file at once, the descriptor stays valid for a concurrent user.
  void hang_up();
  /// The connection id takes packets; both take on_peer_gone(). nullptr removes; after return the old sink is not being
  /// called, except by this very thread.
  void set_manager(Sink* sink);
  void set_queue_pair(Sink* sink);

 private:
  struct Pending;
  [[nodiscard]] bool is_abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  void deliver(Pending packet);
  void deliver_gone();

  UniqueFd socket_;
  std::atomic<bool> peer_gone_{false};
  std::atomic<bool> abandoned_{false};
  // Recursive, because a sink may remove itself, or ring, from inside a callback.
  std::recursive_mutex lock_;
  Sink* manager_ = nullptr;
  Sink* queue_pair_ = nullptr;
  bool manager_told_gone_ = false;
  bool queue_pair_told_gone_ = false;
  std::deque<Pending> kept_;
};

}  // namespace ringsock::soft
