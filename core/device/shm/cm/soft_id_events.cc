// The part of SoftId's state machine that handles events.
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/device/shm/cm/soft_id.h"

namespace ringsock::soft {

using verbs::CmEvent;
using verbs::CmEventType;
using verbs::PortSpace;

namespace {

void copy_private_data(const PrivateData& from, CmEvent& to) {
  std::copy_n(from.bytes.begin(), from.size, to.private_data.begin());
  to.private_data_bytes = from.size;
}

/// Returns the attributes of an address handle. It needs no path on one host: its GID contains the destination, IPv4 as
/// a mapped address.
ibv_ah_attr address_handle_for(const SocketAddress& peer) {
  ibv_ah_attr out{};
  out.is_global = 1;
  out.port_num = 1;
  out.grh.hop_limit = 1;
  const SocketAddress as_v6 = peer.family() == AF_INET ? peer.mapped() : peer;
  std::copy_n(as_v6.in6().sin6_addr.s6_addr, sizeof out.grh.dgid.raw, out.grh.dgid.raw);
  return out;
}

/// Returns whether the client has given up while its request waited, perhaps to use another way.
bool has_left(const IncomingRequest& incoming) {
  char byte;
  return ::recv(incoming.link->fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

}  // namespace

void DueEvents::add(CmEventType type, int status) {
  if (count_ < events_.size()) events_[count_++] = {type, status};
}

DueEvent DueEvents::take() {
  const DueEvent first = events_.front();
  std::shift_left(events_.begin(), events_.end(), 1);
  --count_;
  return first;
}

Result<CmEvent> SoftId::next_event() {
  if (due_.is_empty() && state_ == State::listening) return next_request();
  if (due_.is_empty()) work();
  if (due_.is_empty()) return Error{EAGAIN, "next_event"};
  return complete(due_.take());
}

/// Adds what the peer's request or answer says, and drops what only set the connection up.
CmEvent SoftId::complete(DueEvent due) {
  CmEvent out;
  out.type = due.type;
  out.status = due.status;
  if (due.type == CmEventType::established && request_) out.parameters = request_->parameters;
  if (due.type == CmEventType::established) request_.reset();
  const bool has_ended =
      active_ && (active_->stage() == ActiveSide::Stage::established || active_->stage() == ActiveSide::Stage::failed);
  if (!has_ended) return out;
  const ConnectReply& reply = active_->reply();
  if (due.type == CmEventType::established) out.parameters = reply.parameters;
  if (due.type == CmEventType::established && space_ == PortSpace::udp) {
    out.remote_qpn = reply.offer.qp_num;
    out.remote_qkey = reply.parameters.qkey;
    out.ah_attr = address_handle_for(peer_address_);
  }
  if (due.type == CmEventType::established || due.type == CmEventType::rejected)
    copy_private_data(reply.private_data, out);
  peer_ = active_->peer();
  peer_segment_ = active_->take_segment();
  active_.reset();
  return out;
}

void SoftId::work() {
  if (state_ == State::connecting) {
    active_->work();
    return follow_active_side();
  }
  if (state_ != State::requested && state_ != State::established) return;
  // Draining would consume the doorbell packet of a thread that is about to sleep on the channel; the channel's owner
  // drains anyway.
  if (link_ && !link_.is_channels()) link_->drain();
  look_at_packets();
}

/// Adds the event when the active side has come to its end.
void SoftId::follow_active_side() {
  if (active_->stage() == ActiveSide::Stage::established) {
    establish();
    return look_at_packets();
  }
  if (active_->stage() != ActiveSide::Stage::failed) return;
  state_ = State::closed;
  const int error = active_->error();
  if (error == ECONNREFUSED) return due_.add(CmEventType::rejected, error);
  if (error == ETIMEDOUT) return due_.add(CmEventType::unreachable, error);
  due_.add(CmEventType::connect_error, error);
}

Result<CmEvent> SoftId::next_request() {
  auto incoming = acceptor_->next(monotonic_now());
  // Bounded as next() is. The rest keeps the descriptor readable.
  constexpr int kMaxDeparted = 16;
  for (int i = 0; incoming && has_left(*incoming); ++i) {
    if (i == kMaxDeparted) return Error{EAGAIN, "next_event"};
    incoming = acceptor_->next(monotonic_now());
  }
  if (!incoming) return incoming.error();
  CmEvent event;
  event.type = CmEventType::connect_request;
  event.parameters = incoming->request.parameters;
  copy_private_data(incoming->request.private_data, event);
  event.request = std::make_unique<SoftId>(host_, std::move(*incoming), limits_);
  return event;
}

void SoftId::establish() {
  if (space_ == PortSpace::tcp) link_.leave_to_channel_of(*qp_);
  state_ = State::established;
  due_.add(CmEventType::established);
}

/// Handles what has come behind the request or the answer.
void SoftId::look_at_packets() {
  while (link_) {
    const auto packet = link_.pop();
    if (!packet) break;
    if (packet->type == LinkPacket::disconnect) on_peer_gone();
  }
  if (link_ && link_.is_finished()) on_peer_gone();
}

void SoftId::on_peer_gone() {
  const bool was_established = state_ == State::established;
  link_.drop(peer_segment_.mapping().get());
  link_.tell_queue_pair();
  state_ = State::closed;
  if (was_established) return due_.add(CmEventType::disconnected);
  due_.add(CmEventType::connect_error, ECONNRESET);
}

Status SoftId::move_to_descriptor(int fd) {
  if (state_ != State::established && state_ != State::closed) return Error{EINVAL, "move_to_descriptor: state"};
  return link_.move_to(fd);
}

int SoftId::event_fd() const { return state_ == State::listening ? acceptor_->fd() : link_.event_fd(); }

verbs::ConnectionId::QueueFds SoftId::queue_fds() const {
  return state_ == State::listening ? QueueFds{acceptor_->queue_fd(), acceptor_->half_open_fd()} : QueueFds{};
}

std::optional<Nanos> SoftId::next_deadline() const {
  switch (state_) {
    case State::listening: return acceptor_->deadline();
    case State::connecting: return active_->deadline();
    default: return std::nullopt;
  }
}

}  // namespace ringsock::soft
