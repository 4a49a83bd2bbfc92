// The AF_UNIX socket under a connection of the embedded device: doorbell, liveness, connection management.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/base/close_elsewhere.h"
#include "core/base/mutex.h"
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
  // The memory that a request or a reply named, when it cannot be opened by that name. No bytes.
  want_memory = 6,   ///< "pass it": descriptors are let in from now on, for one packet
  memory = 7,        ///< it, the only packet that brings a descriptor
  memory_taken = 8,  ///< "I have it, by whatever way": its descriptor may be closed
};

inline constexpr std::size_t kMaxLinkPacket = 1024;

/// One AF_UNIX SOCK_SEQPACKET connection. Nothing here blocks, whatever the socket's O_NONBLOCK says. It wakes a
/// sleeping peer (wake packets), tells of its death (end of file: the kernel closes a dead process's sockets), and
/// carries the few messages of the connection manager. One descriptor serves it all, so it is what a completion channel
/// and an event channel both wait on. Shared (std::shared_ptr) by the queue pair and the connection id; lives until
/// both are gone. Threads: all functions from any thread.
///
/// A descriptor that a stranger passes is a danger: the last close(2) of it may block for as long as the stranger
/// likes, and the kernel closes what lies unread in the queue of a socket when that is closed. So
/// - descriptors are let in (rights_gate.h) only while ask_for_memory() waits for one,
/// - a socket in whose queue there may be some is looked at with MSG_PEEK before each packet: what a look brings is a
///   copy, whose close is not the last. A packet with a descriptor that was not asked for stays where it is, and the
///   link ends there (Refusal::descriptor, distrust()),
/// - and such a socket is closed by close_elsewhere().
class Link {
 public:
  /// What drain() hands out, in order of arrival.
  struct Sink {
    virtual ~Sink() = default;
    /// A packet other than wake. `bytes` starts behind the type byte and is untrusted. `memory` is the descriptor of
    /// LinkPacket::memory, of some file.
    virtual void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) = 0;
    /// One or more wake packets were read. Only the queue pair hears of it.
    virtual void on_wake() {}
    /// The peer has gone: closed, died or executed another program. Called once per sink.
    virtual void on_peer_gone() = 0;
  };

  explicit Link(UniqueFd socket);
  ~Link();

  /// The peer is a process of our own user: whatever it passes is no danger.
  void trust_peer() { careful_.store(false, std::memory_order_relaxed); }
  /// The user to distrust() when the peer passes what it was not asked for.
  void set_stranger(uid_t uid) { stranger_ = uid; }
  /// Sends want_memory; the next packet of type memory may bring a descriptor. Errors: as for send().
  Status ask_for_memory();

  /// Has the kernel say who sends the next packet other than wake: sender(), the process that has the link, whoever
  /// called listen(2). Before that packet can come. Costs two system calls.
  void ask_for_sender();
  /// Its number and its real user; nothing when the kernel did not say.
  [[nodiscard]] std::optional<ucred> sender() const { return sender_; }

  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Rings the peer's doorbell. One system call; a full socket is already a rung doorbell; a dead peer is noticed by
  /// drain().
  void ring();
  /// Sends one packet of at most kMaxLinkPacket bytes, with a descriptor (SCM_RIGHTS) when there is one.
  /// Errors: EAGAIN socket full, EPIPE or ECONNRESET peer gone, EPERM the peer lets no descriptor in, EMSGSIZE.
  Status send(LinkPacket type, std::span<const std::byte> bytes, int descriptor = -1);
  /// Reads packets that are there, `at_most` (by default as many as a peer that never stops may keep us with), one
  /// recvmsg(2) each (two from a stranger whom the kernel cannot keep from passing descriptors) and one more to find
  /// that there are no more; what is left keeps the descriptor readable. Tells the sinks; at end of file both hear
  /// on_peer_gone(). A packet that arrives while no manager is set is kept for it.
  /// @return whether the peer had rung: what it rang for is in the ring, and nobody else will be told of it.
  bool drain(int at_most = kMaxPacketsPerDrain);
  static constexpr int kMaxPacketsPerDrain = 32;
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
  enum class Look { fine, nothing, gone, forbidden };
  void take_sender(msghdr& message);
  Look look_at_next(PassedFd& memory);
  void end_for_descriptor();
  [[nodiscard]] bool may_close_here();
  [[nodiscard]] bool is_queue_empty() const;
  [[nodiscard]] bool is_abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  void deliver(Pending packet);
  void deliver_gone();

  UniqueFd socket_;
  /// Around system calls on socket_ without lock_: move_to() closes the number. Inside it no other lock is taken.
  Mutex number_lock_;
  std::atomic<bool> peer_gone_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> careful_;           ///< a stranger may have passed descriptors
  std::atomic<bool> forbidden_{false};  ///< and has
  std::atomic<bool> hung_up_{false};
  bool wants_memory_ = false;  ///< under lock_
  bool wants_sender_ = false;  ///< under lock_
  std::optional<ucred> sender_;
  std::optional<uid_t> stranger_;
  // Recursive, because a sink may remove itself, or ring, from inside a callback.
  std::recursive_mutex lock_;
  Sink* manager_ = nullptr;
  Sink* queue_pair_ = nullptr;
  bool manager_told_gone_ = false;
  bool queue_pair_told_gone_ = false;
  std::deque<Pending> kept_;
};

}  // namespace ringsock::soft
