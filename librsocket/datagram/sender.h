// Sends the datagrams of a datagram rsocket.
#pragma once

#include <sys/socket.h>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "librsocket/datagram/datagram_core.h"
#include "librsocket/datagram/intake.h"

namespace ringsock::rs {

/// By the queue pair to a peer whose number is known, otherwise by the kernel, in a rendezvous packet, which asks for
/// the number. Threads: the lock of the core.
class DatagramSender {
 public:
  DatagramSender(DatagramCore& core, Intake& intake) : core_(core), intake_(intake) {}

  /// sendmsg(2). Errors: EDESTADDRREQ, EMSGSIZE, EPIPE after shutdown(2), EINVAL, EAFNOSUPPORT, EOPNOTSUPP control data
  /// or MSG_OOB; EAGAIN; the error that an earlier packet met; those of DatagramCore::peer_at().
  Result<ssize_t> send(const msghdr& message, int flags, Nanos now);

 private:
  /// What a rendezvous packet asks of the peer.
  enum class Answer {
    number,  ///< its number
    none,    ///< nothing, its number is known
    shared,  ///< answers by the kernel, which another process may read
  };
  [[nodiscard]] Result<SocketAddress> destination(const msghdr& message) const;
  Result<Peer*> usable_peer(const SocketAddress& to, Nanos now);
  Result<ssize_t> send_to(Peer& peer, std::span<const iovec> parts, std::size_t bytes, Nanos now);
  [[nodiscard]] bool may_use_lane(Peer& peer, std::size_t bytes, Nanos now);
  void ask(Peer& peer, Nanos now);
  Result<ssize_t> send_by_lane(Peer& peer, std::span<const iovec> parts, std::size_t bytes);
  Result<Lane::Outcome> send_pieces(Peer& peer, std::span<const iovec> parts, std::size_t bytes);
  Result<ssize_t> send_by_kernel(Peer& peer, std::span<const iovec> parts, std::size_t bytes, Answer wanted);

  /// Pieces of a datagram: a receiver has room for twice as many. Longer ones go by the kernel.
  static constexpr std::size_t kMostPieces = 32;

  DatagramCore& core_;
  Intake& intake_;
  std::uint32_t datagrams_in_pieces_ = 0;
};

}  // namespace ringsock::rs
