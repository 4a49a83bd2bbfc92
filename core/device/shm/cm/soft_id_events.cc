// The part of SoftId's state machine that handles events.
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/base/close_elsewhere.h"
#include "core/base/refusals.h"
#include "core/device/shm/cm/soft_id.h"
#include "core/device/shm/link/open_memory.h"
#include "core/device/shm/memory/segment_cache.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/queue/rc_wiring.h"

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

/// Adds what the peer's request or answer says.
CmEvent SoftId::complete(DueEvent due) const {
  CmEvent out;
  out.type = due.type;
  out.status = due.status;
  if (due.type == CmEventType::established) out.parameters = is_accepting_ ? request_.parameters : reply_.parameters;
  if (due.type == CmEventType::established && space_ == PortSpace::udp) {
    out.remote_qpn = reply_.offer.qp_num;
    out.remote_qkey = reply_.parameters.qkey;
    out.ah_attr = address_handle_for(peer_address_);
  }
  if (due.type == CmEventType::established || due.type == CmEventType::rejected)
    copy_private_data(reply_.private_data, out);
  return out;
}

void SoftId::work() {
  switch (state_) {
    case State::connecting: return work_connect();
    case State::awaiting_reply:
    case State::awaiting_memory:
    case State::requested:
    case State::established: return work_link();
    default: return;
  }
}

void SoftId::work_connect() {
  const Nanos now = monotonic_now();
  if (now < connector_->retry_at()) return;
  auto early = std::exchange(connected_early_, std::nullopt);
  auto connected = early ? Result(std::move(*early)) : connector_->attempt(now);
  if (!connected) {
    if (connected.error().code != EAGAIN) fail_connect(connected.error().code);
    return;
  }
  if (!connected->peer.same_user && is_distrusted(connected->peer.uid)) return fail_connect(ECONNREFUSED);
  // The segment may have been kept for the process that was there before.
  if (segment_peer_ && kept_for(connected->peer) != listener_) return fail_connect(ECONNREFUSED);
  reply_deadline_ = connector_->deadline();
  state_ = State::awaiting_reply;
  if (Status sent = send_request(std::move(*connected)); !sent) {
    const int error = sent.error().code;
    const bool gone = error == EPIPE || error == ECONNRESET;
    if (!gone || !early) return fail_connect(gone ? ECONNREFUSED : error);
    // The listener does not wait for a request for ever.
    drop_link();
    state_ = State::connecting;
    return work_connect();
  }
  connector_.reset();
}

/// Remembers that the listener did not answer, so that clients with another way do not wait for it.
void SoftId::remember_silence(int error) {
  if (unproven_ != Unproven::refuse || limits_.connect.total == Nanos::zero()) return;
  if (error == ETIMEDOUT || (connector_ && connector_->met_full_impostor())) {
    host_.silent_ports.remember({space_, peer_address_, false}, monotonic_now());
  }
}

void SoftId::fail_connect(int error) {
  remember_silence(error);
  connector_.reset();
  // Another program under that process number, or another accepter, refuses a segment kept for the former one.
  if (state_ == State::awaiting_reply && (request_.offer.flags & kOfferKeptSegment) != 0) {
    segment_cache().forget(*segment_peer_);
    segment_cache().accepters_refused(*listener_, monotonic_now());
  }
  drop_link();
  state_ = State::closed;
  reply_ = {};
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
  const auto has_channel = [](const ibv_cq* cq) { return cq != nullptr && cq->channel != nullptr; };
  channel_wakes_us_ = has_channel(qp_->recv_cq) || has_channel(qp_->send_cq);
  state_ = State::established;
  due_.add(CmEventType::established);
}

/// Returns whether the link was looked at just now. A thread that spins for the reply needs no system call each time;
/// one that sleeps does so for longer, and what is not read keeps the descriptor readable.
bool SoftId::is_spinning_on_reply() {
  constexpr std::uint64_t kTicksBetween = 4096;  // 1 to 4 us; on a machine without ticks every call looks
  const std::uint64_t now = ticks();
  if (now - looked_for_reply_at_ < kTicksBetween && now != 0) return true;
  looked_for_reply_at_ = now;
  return false;
}

void SoftId::work_link() {
  // Draining would consume the doorbell packet of a thread that is about to sleep on the channel; the channel's owner
  // drains anyway.
  const bool connects = state_ == State::awaiting_reply || state_ == State::awaiting_memory;
  if (connects) {
    // The packet is there already, or there is none.
    if (!is_spinning_on_reply()) link_->drain(1);
  } else if (!channel_wakes_us_) {
    link_->drain();
  }
  while (link_) {
    auto packet = inbox_->pop();
    if (!packet) break;
    on_packet(std::move(*packet));
  }
  if (link_ && inbox_->is_finished()) return on_peer_gone();
  if (connects && state_ != State::established && state_ != State::closed && monotonic_now() >= reply_deadline_)
    fail_connect(ETIMEDOUT);
}

void SoftId::on_packet(LinkInbox::Packet packet) {
  const bool waiting = state_ == State::awaiting_reply;
  if (waiting && packet.type == LinkPacket::reply) return on_reply(std::move(packet));
  if (waiting && packet.type == LinkPacket::reject) return on_reject(packet);
  if (state_ == State::awaiting_memory && packet.type == LinkPacket::memory) return on_memory(std::move(packet.memory));
  if (packet.type == LinkPacket::disconnect) on_peer_gone();
}

void SoftId::on_reply(LinkInbox::Packet packet) {
  auto reply = parse_reply(packet.bytes);
  if (!reply) return fail_connect(ECONNREFUSED);
  if (!is_answered_by_our_own_namespace()) {
    count_refusal(Refusal::port_owner);
    return fail_connect(ECONNREFUSED);
  }
  if (space_ == PortSpace::udp) return on_udp_reply(*reply);
  // The listener has our memory now.
  inbox_->withdraw_memory();
  reply_ = *reply;
  if (!meets_expected_accepter()) return fail_connect(ECONNREFUSED);
  if ((reply_.offer.flags & kOfferHasMemfd) == 0) return finish_connect({});
  const MemoryName& name = reply_.offer.memory;
  if (peer_.same_user && peer_.pid > 0 && reply_.from_listening_process) {
    auto memfd = open_memory_of(peer_.pid, name.descriptor, name.inode);
    if (memfd) return finish_connect(std::move(*memfd));
  }
  if (!peer_.same_user && closers_are_busy()) {
    count_refusal(Refusal::descriptor);
    return fail_connect(ECONNREFUSED);
  }
  if (Status asked = link_->ask_for_memory(); !asked) return fail_connect(ECONNREFUSED);
  state_ = State::awaiting_memory;
}

/// Checks the process that answers. The one that called listen(2) may have ended, as a daemon's first process has, and
/// its number may belong to another process.
bool SoftId::is_answered_by_our_own_namespace() const {
  const auto sender = link_->sender();
  return is_of_our_pid_namespace(sender ? sender->pid : peer_.pid, monotonic_now());
}

/// Returns false when the process that has our memory now is not one that it was kept for.
bool SoftId::meets_expected_accepter() {
  if (!listener_) return true;
  const auto sender = link_->sender();
  std::optional<PeerProcess> accepters;
  if (reply_.from_listening_process && (sender ? sender->uid == peer_.uid : !peer_.same_user)) {
    accepters = offered_to(peer_);
  } else if (sender) {
    accepters = PeerProcess{kAnyProcess, sender->uid};
  }
  if (accepters == segment_peer_) return true;
  segment_cache().learn_accepters(*listener_, accepters, monotonic_now());
  if (segment_peer_) wiring_of(*qp_).keep_for_nobody();
  return (request_.offer.flags & kOfferKeptSegment) == 0;
}

void SoftId::on_memory(PassedFd memory) {
  if (memory && check_peer_memfd(memory.get(), reply_.offer.memory)) return finish_connect(memory.take());
  count_refusal(Refusal::descriptor);
  if (!peer_.same_user) distrust(peer_.uid);
  fail_connect(ECONNREFUSED);
}

void SoftId::finish_connect(UniqueFd memfd) {
  const bool has_memfd = static_cast<bool>(memfd);
  if (Status attached = attach(std::move(memfd)); !attached) return fail_connect(attached.error().code);
  // A failure is ignored: a peer that has gone is noticed otherwise.
  if (has_memfd) static_cast<void>(link_->send(LinkPacket::memory_taken, {}));
  establish();
}

Status SoftId::attach(UniqueFd memfd) {
  std::shared_ptr<MappedSegment> segment;
  if (memfd) {
    // Our own offer tells how much such a connection needs.
    const std::uint64_t own_bytes =
        request_.offer.inbox.bytes + request_.offer.spare.bytes - 2 * quiet_bytes_of(request_.offer);
    auto mapped = map_peers(std::move(memfd), reply_.offer.memory, {own_bytes, 0}, std::nullopt);
    if (!mapped) return mapped.error();
    segment = std::move(*mapped);
  }
  // SO_PEERCRED names the process that called listen(). A forked worker has another number, and that of another user's
  // process may have been reused.
  const pid_t pid = reply_.from_listening_process && peer_.same_user ? peer_.pid : 0;
  return wiring_of(*qp_).attach(reply_.offer, std::move(segment), link_, {{peer_.pid, peer_.uid}, pid},
                                reply_.parameters.rnr_retry_count);
}

void SoftId::on_udp_reply(const ConnectReply& reply) {
  // The exchange is complete, as with SIDR: datagrams need no connection.
  drop_link();
  reply_ = reply;
  state_ = State::established;
  due_.add(CmEventType::established);
}

void SoftId::on_reject(const LinkInbox::Packet& packet) {
  const auto data = parse_reject(packet.bytes);
  fail_connect(ECONNREFUSED);
  if (data) reply_.private_data = *data;
}

void SoftId::on_peer_gone() {
  if (state_ == State::awaiting_reply || state_ == State::awaiting_memory) return fail_connect(ECONNREFUSED);
  const bool was_established = state_ == State::established;
  drop_link();
  state_ = State::closed;
  if (was_established) return due_.add(CmEventType::disconnected);
  due_.add(CmEventType::connect_error, ECONNRESET);
}

Status SoftId::move_to_descriptor(int fd) {
  const auto link = link_with_descriptor();
  const bool has_been_established = state_ == State::established || state_ == State::closed;
  if (!has_been_established || !link || channel_wakes_us_) return Error{EINVAL, "move_to_descriptor: state"};
  return link->move_to(fd);
}

Status SoftId::adopt_descriptor(int fd) {
  const auto link = link_with_descriptor();
  if (!link || channel_wakes_us_) return Error{EINVAL, "adopt_descriptor: state"};
  link->adopt(fd);
  return ok();
}

int SoftId::event_fd() const {
  if (state_ == State::listening) return acceptor_->fd();
  if (!link_ || channel_wakes_us_) return -1;
  return link_->fd();
}

verbs::ConnectionId::QueueFds SoftId::queue_fds() const {
  return state_ == State::listening ? QueueFds{acceptor_->queue_fd(), acceptor_->half_open_fd()} : QueueFds{};
}

std::optional<Nanos> SoftId::next_deadline() const {
  switch (state_) {
    case State::listening: return acceptor_->deadline();
    case State::connecting: return connector_->retry_at();
    case State::awaiting_reply:
    case State::awaiting_memory: return reply_deadline_;
    default: return std::nullopt;
  }
}

}  // namespace ringsock::soft
