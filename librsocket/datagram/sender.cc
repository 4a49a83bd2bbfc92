#include "librsocket/datagram/sender.h"

#include <cerrno>

#include "librsocket/io_vector.h"

namespace ringsock::rs {

namespace {

/// As for the kernel, the wildcard is this host.
SocketAddress reachable(const SocketAddress& to) {
  if (!to.is_wildcard()) return to;
  return to.family() == AF_INET ? SocketAddress::v4(INADDR_LOOPBACK, to.port())
                                : SocketAddress::v6(in6addr_loopback, to.port());
}

}  // namespace

Result<SocketAddress> DatagramSender::destination(const msghdr& message) const {
  if (message.msg_name == nullptr || message.msg_namelen == 0) {
    if (!core_.is_connected()) return Error{EDESTADDRREQ, "send: no destination"};
    return core_.peer;
  }
  const auto to = SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  if (!to) return to.error();
  if (core_.domain == AF_INET && to->family() != AF_INET) return Error{EAFNOSUPPORT, "send: family"};
  if (to->port() == 0) return Error{EINVAL, "send: port"};
  return reachable(to->unmapped());
}

Result<ssize_t> DatagramSender::send(const msghdr& message, int flags, Nanos now) {
  if ((flags & MSG_OOB) != 0 || message.msg_controllen != 0) return Error{EOPNOTSUPP, "send: out of band, control"};
  const auto bytes = total_bytes(message.msg_iov, message.msg_iovlen);
  if (!bytes) return bytes.error();
  if (*bytes > wire::max_rs_datagram(AF_INET)) return Error{EMSGSIZE, "send: size"};
  if (const int error = core_.take_error(); error != 0) return Error{error, "send: earlier"};
  if (core_.write_shut) return Error{EPIPE, "send: shut down"};
  const auto to = destination(message);
  if (!to) return to.error();
  if (*bytes > wire::max_rs_datagram(to->family())) return Error{EMSGSIZE, "send: size"};
  const auto peer = usable_peer(*to, now);
  if (!peer) return peer.error();
  const auto sent = send_to(**peer, {message.msg_iov, message.msg_iovlen}, *bytes, now);
  if (sent) core_.statistics.count_sent(*bytes);
  return sent;
}

/// Looks for the answer of a peer that was asked.
Result<Peer*> DatagramSender::usable_peer(const SocketAddress& to, Nanos now) {
  auto peer = core_.peer_at(to);
  if (!peer || !(*peer)->was_asked) return peer;
  if ((*peer)->is_usable(now) && !(*peer)->answers_questions()) return peer;
  intake_.look(now);
  return core_.peer_at(to);
}

Result<ssize_t> DatagramSender::send_to(Peer& peer, std::span<const iovec> parts, std::size_t bytes, Nanos now) {
  if (!may_use_lane(peer, bytes, now)) {
    peer.asked = now;
    return send_by_kernel(peer, parts, bytes);
  }
  if (peer.is_question_due(now)) ask(peer, now);
  const auto sent = send_by_lane(peer, parts, bytes);
  if (sent) peer.sent_by_lane = now;
  return sent;
}

/// After a silence the next datagram itself is the question: nothing is lost when the peer has a new number.
bool DatagramSender::may_use_lane(Peer& peer, std::size_t bytes, Nanos now) {
  if (!peer.is_usable(now)) return false;
  const bool is_flowing = peer.sent_by_lane != Nanos::min() && now - peer.sent_by_lane < Peer::kSilence;
  if (peer.is_question_due(now) && !is_flowing) return false;
  const std::size_t whole = bytes + peer.header.length;
  if (whole > peer.lane->most_bytes()) return false;
  if (peer.note.mtu != 0 && whole > wire::mtu_bytes(peer.note.mtu)) return false;
  return core_.has_path(peer, now);
}

/// Asks beside a flow of datagrams whether the peer still has its number.
void DatagramSender::ask(Peer& peer, Nanos now) {
  peer.asked = now;
  peer.was_asked = true;
  core_.tell_number(peer, {.asks = true});
}

/// What cannot be delivered, because the peer's process has another queue pair by now, or its receive buffer is full,
/// goes by the kernel.
Result<ssize_t> DatagramSender::send_by_lane(Peer& peer, std::span<const iovec> parts, std::size_t bytes) {
  const auto outcome = peer.lane->send(*peer.ah, peer.qp_number, peer.header.view(), parts);
  if (outcome && *outcome == Lane::Outcome::sent) return static_cast<ssize_t>(bytes);
  if (!outcome && outcome.error().code == EAGAIN) {
    core_.must_wait_to_send = true;
    core_.full_lane = peer.lane;
    return outcome.error();
  }
  if (!outcome && !peer.lane->has_failed()) return outcome.error();
  peer.is_known = false;
  return send_by_kernel(peer, parts, bytes);
}

Result<ssize_t> DatagramSender::send_by_kernel(Peer& peer, std::span<const iovec> parts, std::size_t bytes) {
  const auto header = wire::emit_rs_udp(wire::RsUdpOp::data, peer.lane->qp_number(), peer.local, peer.lane->note());
  const Status sent = core_.port.send(header.view(), parts, peer.address, peer.local);
  core_.must_wait_to_send = !sent && sent.error().code == EAGAIN;
  if (!sent) return sent.error();
  peer.was_asked = true;
  return static_cast<ssize_t>(bytes);
}

}  // namespace ringsock::rs
