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
  const std::span<const iovec> parts(message.msg_iov, message.msg_iovlen);
  const auto sent =
      (*peer)->is_usable(now) ? send_by_lane(**peer, parts, *bytes) : send_by_kernel(**peer, parts, *bytes);
  if (sent) core_.statistics.count_sent(*bytes);
  return sent;
}

/// Looks for the answer of a peer that was asked.
Result<Peer*> DatagramSender::usable_peer(const SocketAddress& to, Nanos now) {
  auto peer = core_.peer_at(to);
  if (!peer || (*peer)->is_usable(now) || !(*peer)->was_asked) return peer;
  intake_.look(now);
  return core_.peer_at(to);
}

/// What cannot be delivered, because the peer's process has another queue pair by now, or its receive buffer is full,
/// goes by the kernel.
Result<ssize_t> DatagramSender::send_by_lane(Peer& peer, std::span<const iovec> parts, std::size_t bytes) {
  const auto outcome = core_.lane->send(*peer.ah, peer.qp_number, peer.header.view(), parts);
  if (!outcome) return outcome.error();
  if (*outcome == Lane::Outcome::sent) return static_cast<ssize_t>(bytes);
  peer.is_known = false;
  return send_by_kernel(peer, parts, bytes);
}

Result<ssize_t> DatagramSender::send_by_kernel(Peer& peer, std::span<const iovec> parts, std::size_t bytes) {
  const auto header = wire::emit_rs_udp(wire::RsUdpOp::data, core_.lane->qp_number(), peer.local);
  const Status sent = core_.port.send(header.view(), parts, peer.address, peer.local);
  core_.must_wait_to_send = !sent && sent.error().code == EAGAIN;
  if (!sent) return sent.error();
  peer.was_asked = true;
  return static_cast<ssize_t>(bytes);
}

}  // namespace ringsock::rs
