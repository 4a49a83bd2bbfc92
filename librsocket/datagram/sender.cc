#include "librsocket/datagram/sender.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "librsocket/io_vector.h"

namespace ringsock::rs {

namespace {

/// As for the kernel, the wildcard is this host.
SocketAddress reachable(const SocketAddress& to) {
  if (!to.is_wildcard()) return to;
  return to.family() == AF_INET ? SocketAddress::v4(INADDR_LOOPBACK, to.port())
                                : SocketAddress::v6(in6addr_loopback, to.port());
}

constexpr Error kNoDestination{EDESTADDRREQ, "send: no destination"};

/// Returns the address to which the caller sends. As for the kernel, AF_UNSPEC means AF_INET on a socket of that
/// family; on one of AF_INET6 it is no address, and the result unspecified.
Result<SocketAddress> address_in(const msghdr& message, int domain) {
  const auto* const name = static_cast<const sockaddr*>(message.msg_name);
  if (message.msg_namelen < sizeof(sa_family_t) || name->sa_family != AF_UNSPEC)
    return SocketAddress::from(name, message.msg_namelen);
  if (domain == AF_INET6) return SocketAddress();
  if (message.msg_namelen < sizeof(sockaddr_in)) return Error{EINVAL, "send: address"};
  sockaddr_in ipv4;
  std::memcpy(&ipv4, name, sizeof ipv4);
  ipv4.sin_family = AF_INET;
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&ipv4), sizeof ipv4);
}

/// The source of a packet may be forged, and making a handle may wait for the network: only a peer that has answered is
/// surely there.
bool is_surely_there(const Peer& peer) { return peer.has_answered || peer.lane->is_embedded(); }

/// Returns the longest datagram that the lane and the peer take, header included.
std::size_t most_bytes_to(const Peer& peer) {
  const std::size_t ours = peer.lane->most_bytes();
  return peer.note.mtu == 0 ? ours : std::min(ours, wire::mtu_bytes(peer.note.mtu));
}

/// Returns the largest datagram of the user for the peer. On Ethernet links every peer is a ringsock.
std::size_t largest_to(const Peer& peer) {
  const bool is_large = peer.note.takes_large || peer.lane->port().is_ethernet;
  return is_large ? wire::kMaxRsLarge : wire::max_rs_datagram(peer.address.family());
}

/// Returns the bytes of the user in one piece.
std::size_t piece_bytes_to(const Peer& peer) {
  return most_bytes_to(peer) - peer.header.length - sizeof(wire::RsFragment);
}

std::size_t pieces_to(const Peer& peer, std::size_t bytes) {
  if (bytes + peer.header.length <= most_bytes_to(peer)) return 1;
  return (bytes + piece_bytes_to(peer) - 1) / piece_bytes_to(peer);
}

}  // namespace

Result<SocketAddress> DatagramSender::destination(const msghdr& message) const {
  if (message.msg_name == nullptr || message.msg_namelen == 0) {
    return core_.is_connected() ? Result<SocketAddress>(core_.peer) : kNoDestination;
  }
  const auto to = address_in(message, core_.domain);
  if (!to) return to.error();
  if (to->is_unspecified()) return core_.is_connected() ? Result<SocketAddress>(core_.peer) : kNoDestination;
  if (core_.domain == AF_INET && to->family() != AF_INET) return Error{EAFNOSUPPORT, "send: family"};
  if (to->port() == 0) return Error{EINVAL, "send: port"};
  return reachable(to->unmapped());
}

Result<ssize_t> DatagramSender::send(const msghdr& message, int flags, Nanos now) {
  if ((flags & MSG_OOB) != 0 || message.msg_controllen != 0) return Error{EOPNOTSUPP, "send: out of band, control"};
  const auto bytes = total_bytes(message.msg_iov, message.msg_iovlen);
  if (!bytes) return bytes.error();
  if (*bytes > wire::kMaxRsLarge) return Error{EMSGSIZE, "send: size"};
  if (const int error = core_.take_error(); error != 0) return Error{error, "send: earlier"};
  if (core_.write_shut) return Error{EPIPE, "send: shut down"};
  const auto to = destination(message);
  if (!to) return to.error();
  const auto peer = usable_peer(*to, now);
  if (!peer) return peer.error();
  if (*bytes > largest_to(**peer)) return Error{EMSGSIZE, "send: size"};
  const auto sent = send_to(**peer, {message.msg_iov, message.msg_iovlen}, *bytes, now);
  if (sent) core_.statistics.count_sent(*bytes);
  return sent;
}

/// Looks for the answer of a peer that was asked.
Result<Peer*> DatagramSender::usable_peer(const SocketAddress& to, Nanos now) {
  auto peer = core_.peer_at(to);
  if (!peer || !(*peer)->was_asked) return peer;
  if ((*peer)->is_usable(now) && is_surely_there(**peer) && !(*peer)->answers_questions()) return peer;
  intake_.look(now);
  return core_.peer_at(to);
}

Result<ssize_t> DatagramSender::send_to(Peer& peer, std::span<const iovec> parts, std::size_t bytes, Nanos now) {
  if (core_.shares_answers(peer, now)) [[unlikely]]
    return send_by_kernel(peer, parts, bytes, Answer::shared);
  if (!may_use_lane(peer, bytes, now)) {
    const bool knows =
        peer.is_usable(now) && peer.answers_questions() && peer.has_answered && !peer.is_question_due(now);
    if (!knows) peer.asked = now;
    return send_by_kernel(peer, parts, bytes, knows ? Answer::none : Answer::number);
  }
  if (peer.is_question_due(now)) ask(peer, now);
  const auto sent = send_by_lane(peer, parts, bytes);
  if (sent) peer.sent_by_lane = now;
  return sent;
}

/// After a silence the next datagram itself is the question: nothing is lost when the peer has a new number.
bool DatagramSender::may_use_lane(Peer& peer, std::size_t bytes, Nanos now) {
  if (!peer.is_usable(now)) {
    peer.forget_path();  // it may be another one by the time of an answer
    return false;
  }
  if (!is_surely_there(peer)) return false;
  const bool is_flowing = peer.sent_by_lane != Nanos::min() && now - peer.sent_by_lane < Peer::kSilence;
  if (peer.is_question_due(now) && !is_flowing) return false;
  const std::size_t pieces = pieces_to(peer, bytes);
  const bool fits = pieces == 1 || (peer.note.takes_large && pieces <= peer.lane->most_pieces(kMostPieces));
  return fits && core_.has_path(peer, now);
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
  const std::size_t pieces = pieces_to(peer, bytes);
  const auto outcome = pieces > 1 ? send_pieces(peer, parts, bytes)
                                  : peer.lane->send(*peer.ah, peer.qp_number, peer.header.view(), parts);
  if (outcome && *outcome == Lane::Outcome::sent) return static_cast<ssize_t>(bytes);
  if (!outcome && outcome.error().code == EAGAIN) {
    core_.must_wait_to_send = true;
    core_.full_lane = peer.lane;
    core_.slots_wanted = pieces;
    return outcome.error();
  }
  if (!outcome && !peer.lane->has_failed()) return outcome.error();
  peer.is_known = false;
  return send_by_kernel(peer, parts, bytes, Answer::number);
}

Result<Lane::Outcome> DatagramSender::send_pieces(Peer& peer, std::span<const iovec> parts, std::size_t bytes) {
  SlotSends& lane = *peer.lane->slot_sends();
  if (!lane.has_room(pieces_to(peer, bytes))) return Error{EAGAIN, "send: slots"};
  const std::size_t piece_bytes = piece_bytes_to(peer);
  const std::uint32_t number = ++datagrams_in_pieces_;
  IoCursor data(parts);
  for (std::uint16_t index = 0; index * piece_bytes < bytes; ++index) {
    const wire::RsFragment piece{wire::Be32(number), wire::Be32(static_cast<std::uint32_t>(bytes)), wire::Be16(index),
                                 wire::Be16(static_cast<std::uint16_t>(piece_bytes))};
    const auto header = wire::emit_rs_fragment(peer.header, piece);
    if (Status sent = lane.send(*peer.ah, peer.qp_number, header.view(), data, piece_bytes); !sent) return sent.error();
  }
  return Lane::Outcome::sent;
}

Result<ssize_t> DatagramSender::send_by_kernel(Peer& peer, std::span<const iovec> parts, std::size_t bytes,
                                               Answer wanted) {
  wire::RsUdpNote note = peer.lane->note();
  note.knows = wanted == Answer::none;
  note.is_shared = wanted == Answer::shared;
  const auto header = wire::emit_rs_udp(wire::RsUdpOp::data, peer.lane->qp_number(), peer.local, note);
  const Status sent = core_.port.send(header.view(), parts, peer.address, peer.local);
  core_.must_wait_to_send = !sent && sent.error().code == EAGAIN;
  if (!sent) return sent.error();
  peer.was_asked = peer.was_asked || wanted == Answer::number;
  return static_cast<ssize_t>(bytes);
}

}  // namespace ringsock::rs
