// The AF_UNIX socket under a connection of the embedded device: doorbell, liveness, connection management.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
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
  wake = 1,        ///< doorbell: something came after the receiver had armed. No more bytes
  request = 2,     ///< CM connect request
  reply = 3,       ///< CM reply
  reject = 4,      ///< CM reject
  disconnect = 5,  ///< CM disconnect request
  // For memory that a request or a reply named and that cannot be opened by that name. No more bytes.
  want_memory = 6,   ///< asks for the memory; the sender accepts descriptors from now on, for one packet
  memory = 7,        ///< the memory; carries a descriptor, as ready_map does and no other packet
  memory_taken = 8,  ///< the sender has the memory: its descriptor may be closed
  // The same for the map of ready connections (core/base/ready_map.h) of an established connection's peer.
  want_ready_map = 9,
  ready_map = 10,
};

inline constexpr std::size_t kMaxLinkPacket = 1024;

/// One AF_UNIX SOCK_SEQPACKET connection. Nothing here blocks, whatever the socket's O_NONBLOCK says. It wakes a
/// sleeping peer (wake packets), reports its death (end of file: the kernel closes a dead process's sockets), and
/// carries the few messages of the connection manager. A completion channel and an event channel both wait on its one
/// descriptor. The queue pair and the connection id share it (std::shared_ptr). Threads: all functions from any thread.
///
/// A descriptor that a stranger passes is a danger: its last close(2) may block for as long as the stranger likes, and
/// closing a socket closes the descriptors in its queue. So
/// - descriptors are accepted (rights_gate.h) only while ask_for_memory() waits for one,
/// - a socket in whose queue there may be some is looked at with MSG_PEEK before each packet: what a look brings is a
///   copy, whose close is not the last. A packet with a descriptor that was not asked for stays where it is, and the
///   link ends there (Refusal::descriptor, distrust()),
/// - and such a socket is closed by close_elsewhere().
class Link {
 public:
  /// Receives what drain() reads, in order of arrival.
  struct Sink {
    virtual ~Sink() = default;
    /// Called for a packet other than wake: on the queue pair's sink for those of maps, on the manager's for the
    /// others. `bytes` starts behind the type byte and is untrusted. `memory` is the descriptor of LinkPacket::memory
    /// or ready_map, which may be of any file.
    virtual void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) = 0;
    /// Called when wake packets were read, only on the queue pair's sink.
    virtual void on_wake() {}
    /// Called once per sink when the peer has closed, died or executed another program.
    virtual void on_peer_gone() = 0;
  };

  explicit Link(UniqueFd socket);
  ~Link();

  /// Call it when the peer is a process of our own user, whose descriptors are no danger.
  void trust_peer() { careful_.store(false, std::memory_order_relaxed); }
  /// Sets the user to distrust() when the peer passes a descriptor that it was not asked for.
  void set_stranger(uid_t uid) { stranger_ = uid; }
  /// Sends want_memory; the next packet of type memory may carry a descriptor. Errors: as for send().
  Status ask_for_memory();
  /// The same by want_ready_map, unless another thread is draining the link just now. Takes no lock that it would wait
  /// for.
  void ask_for_map();

  /// Asks the kernel for the sender of the next packet other than wake, for sender(): the process that uses the link,
  /// which need not be the one that called listen(2). Call it before that packet can arrive. Costs two system calls.
  void ask_for_sender();
  /// Returns the sender's pid and real user, nothing when the kernel did not report them.
  [[nodiscard]] std::optional<ucred> sender() const { return sender_; }

  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Rings the peer's doorbell. Costs one system call. A full socket is a doorbell that has been rung already. Returns
  /// false when the peer has gone; drain() tells the sinks of it.
  bool ring();
  /// Sends one packet of at most kMaxLinkPacket bytes, with a descriptor (SCM_RIGHTS) when there is one.
  /// Errors: EAGAIN socket full, EPIPE or ECONNRESET peer gone, EPERM the peer lets no descriptor in, EMSGSIZE.
  Status send(LinkPacket type, std::span<const std::byte> bytes, int descriptor = -1);
  /// Reads the present packets, at most `at_most`, and calls the sinks; at end of file both get on_peer_gone(). The
  /// default limit bounds the work for a peer that never stops sending; the rest keeps the descriptor readable. Costs
  /// one recvmsg(2) per packet (two for a stranger who may pass descriptors), and one more to find that there are no
  /// more. A packet that arrives while no manager is set is kept for it.
  /// @return whether the peer had rung: the caller must look at the ring, because no other thread is notified.
  bool drain(int at_most = kMaxPacketsPerDrain);
  static constexpr int kMaxPacketsPerDrain = 32;
  [[nodiscard]] bool peer_gone() const { return peer_gone_.load(std::memory_order_acquire); }
  /// Moves the socket to the descriptor number `fd`, closing what was open there. Call it before others use fd().
  Status move_to(int fd);
  /// verbs::ConnectionId::adopt_descriptor().
  void adopt(int fd);
  /// Leaves the socket to another process that has a copy: this one no longer sends, reads or shuts it down.
  /// @param give_away other code closes the descriptor
  void abandon(bool give_away);
  /// shutdown(2) both ways: the peer sees end of file at once, the descriptor stays valid for a concurrent user.
  void hang_up();
  /// Sets the sink of the connection id, which gets packets; both sinks get on_peer_gone(). nullptr removes it. After
  /// return the old sink is not being called, except by this thread.
  void set_manager(Sink* sink);
  void set_queue_pair(Sink* sink);

 private:
  struct Pending;
  enum class Look { fine, nothing, gone, forbidden };
  enum class Taken { nothing, wake, other };
  void take_sender(msghdr& message);
  Look look_at_next(PassedFd& memory);
  Taken take_packet(PassedFd memory, std::span<std::byte> room);
  Taken take_long_packet(PassedFd memory);
  void end_for_descriptor();
  [[nodiscard]] bool may_close_here();
  [[nodiscard]] bool is_queue_empty() const;
  [[nodiscard]] bool is_abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  Status ask_locked(LinkPacket question);
  void deliver(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory);
  void lose_packet(LinkPacket type);
  void deliver_gone();

  UniqueFd socket_;
  /// Held around system calls on socket_ without lock_, because move_to() closes the number. No other lock is taken
  /// inside it.
  Mutex number_lock_;
  std::atomic<bool> peer_gone_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> careful_;           ///< the queue may hold descriptors of a stranger
  std::atomic<bool> forbidden_{false};  ///< the peer has passed a descriptor that it was not asked for
  std::atomic<bool> hung_up_{false};
  bool wants_memory_ = false;  ///< under lock_
  bool wants_sender_ = false;  ///< under lock_
  bool awaits_data_ = true;    ///< under lock_; false once a packet with more than its type has come: there is one
  std::optional<ucred> sender_;
  std::optional<uid_t> stranger_;
  // Recursive, because a sink may remove itself, or ring, from inside a callback.
  std::recursive_mutex lock_;
  Sink* manager_ = nullptr;
  Sink* queue_pair_ = nullptr;
  bool manager_told_gone_ = false;
  bool queue_pair_told_gone_ = false;
  std::list<Pending> kept_;
};

}  // namespace ringsock::soft
