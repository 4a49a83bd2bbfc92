#include "core/device/shm/cm/active_side.h"

#include <cerrno>
#include <utility>

#include "core/base/clock.h"
#include "core/base/close_elsewhere.h"
#include "core/base/refusals.h"
#include "core/device/shm/link/open_memory.h"
#include "core/device/shm/link/strangers.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/queue/rc_wiring.h"

namespace ringsock::soft {

using verbs::PortSpace;

void ActiveSide::join_early(const SocketAddress& destination, PortReservation& port) {
  if (is_early_) return;
  search_.aim(destination, port);
  if (const auto listener = search_.listener_lately_reached()) {
    is_early_ = true;
    return expected_.expect(*listener);
  }
  const Connector::Connected* const connected = search_.join_early();
  if (connected == nullptr) return;
  is_early_ = true;
  expected_.expect(connected->peer);
}

void ActiveSide::stop_waiting() {
  if (stage_ == Stage::searching) return fail(ETIMEDOUT);
  looked_for_reply_at_ = 0;  // the next look is a real one
  reply_deadline_ = Nanos::zero();
}

void ActiveSide::connect(const ConnectRequest& request, ibv_qp* qp, PortReservation& port) {
  request_ = request;
  qp_ = qp;
  search_.aim(request_.destination, port);
  search_.start();
  work();
}

void ActiveSide::work() {
  if (stage_ == Stage::searching) return search();
  if (is_waiting()) look_for_answer();
}

void ActiveSide::search() {
  if (monotonic_now() < search_.retry_at()) return;
  auto found = search_.take();
  if (!found) {
    if (found.error().code != EAGAIN) fail(found.error().code);
    return;
  }
  const PeerIdentity& peer = found->connection.peer;
  if (!peer.same_user && is_distrusted(peer.uid)) return fail(ECONNREFUSED);
  // The segment may have been kept for the process that was there before.
  if (expected_.is_other(peer)) return fail(ECONNREFUSED);
  reply_deadline_ = search_.deadline();
  stage_ = Stage::awaiting_reply;
  if (Status sent = send_request(std::move(found->connection)); !sent) {
    const int error = sent.error().code;
    const bool gone = error == EPIPE || error == ECONNRESET;
    if (!gone || !found->is_early) return fail(gone ? ECONNREFUSED : error);
    // The listener does not wait for a request for ever.
    link_.drop(nullptr);
    stage_ = Stage::searching;
    return search();
  }
  search_.end(0);
}

Status ActiveSide::send_request(Connector::Connected connected) {
  peer_ = connected.peer;
  link_.open(std::move(connected.socket), peer_);
  if (space_ == PortSpace::tcp) {
    RcWiring& wiring = wiring_of(*qp_);
    request_.offer = wiring.offer();
    // The other parts of a memfd are for processes only that can open it (segment_batch.h).
    if (parts_of(request_.offer) == 1) link_.offer_memory(wiring.offer_memfd());
    wiring.own_segment().open_request();
  }
  link_->ask_for_sender();
  const Status sent = link_->send(LinkPacket::request, encode_request(request_).view());
  looked_for_reply_at_ = ticks();  // no listener answers within the next microsecond
  return sent;
}

/// Returns whether the link was looked at just now. A thread that spins for the reply needs no system call each time;
/// one that sleeps does so for longer, and what is not read keeps the descriptor readable.
bool ActiveSide::is_spinning_on_reply() {
  constexpr std::uint64_t kTicksBetween = 4096;  // 1 to 4 us; on a machine without ticks every call looks
  const std::uint64_t now = ticks();
  if (now - looked_for_reply_at_ < kTicksBetween && now != 0) return true;
  looked_for_reply_at_ = now;
  return false;
}

void ActiveSide::look_for_answer() {
  // The packet is there already, or there is none.
  if (!is_spinning_on_reply()) link_->drain(1);
  while (is_waiting()) {
    auto packet = link_.pop();
    if (!packet) break;
    on_packet(std::move(*packet));
  }
  if (is_waiting() && link_.is_finished()) return fail(ECONNREFUSED);
  const Nanos now = monotonic_now();
  if (is_waiting() && now >= reply_deadline_) give_up(now);
}

/// Fails, unless the listener has decided to answer: it would give a connection out whose client has gone. So its
/// answer is waited for, but not for ever.
void ActiveSide::give_up(Nanos now) {
  constexpr Nanos kForAnAnswer = std::chrono::milliseconds(200);
  const bool may_be_due = space_ == PortSpace::tcp && !is_answer_due_;
  if (!may_be_due || wiring_of(*qp_).own_segment().settle_request(RequestState::withdrawn)) return fail(ETIMEDOUT);
  is_answer_due_ = true;
  reply_deadline_ = now + kForAnAnswer;
}

void ActiveSide::on_packet(LinkInbox::Packet packet) {
  const bool waits_for_reply = stage_ == Stage::awaiting_reply;
  if (waits_for_reply && packet.type == LinkPacket::reply) return on_reply(std::move(packet));
  if (waits_for_reply && packet.type == LinkPacket::reject) return on_reject(packet);
  if (!waits_for_reply && packet.type == LinkPacket::memory) return on_memory(std::move(packet.memory));
  if (packet.type == LinkPacket::disconnect) fail(ECONNREFUSED);
}

void ActiveSide::on_reply(LinkInbox::Packet packet) {
  auto reply = parse_reply(packet.bytes);
  if (!reply) return fail(ECONNREFUSED);
  if (!is_answered_by_our_own_namespace()) {
    count_refusal(Refusal::port_owner);
    return fail(ECONNREFUSED);
  }
  if (space_ == PortSpace::udp) return on_udp_reply(*reply);
  // The listener has our memory now.
  link_.withdraw_memory();
  reply_ = *reply;
  if (!meets_expected_accepter()) return fail(ECONNREFUSED);
  if ((request_.offer.flags & kOfferKeptSegment) == 0) expected_.opens_memory(!link_.was_asked_for_memory());
  if ((reply_.offer.flags & kOfferHasMemfd) == 0) return finish({});
  const MemoryName& name = reply_.offer.memory;
  if (peer_.same_user && peer_.pid > 0 && reply_.from_listening_process) {
    auto memfd = open_memory_of(peer_.pid, name.descriptor, name.inode);
    if (memfd) return finish(std::move(*memfd));
  }
  ask_for_memory();
}

void ActiveSide::ask_for_memory() {
  if (!peer_.same_user && closers_are_busy()) {
    count_refusal(Refusal::descriptor);
    return fail(ECONNREFUSED);
  }
  if (Status asked = link_->ask_for_memory(); !asked) return fail(ECONNREFUSED);
  stage_ = Stage::awaiting_memory;
}

/// Checks the process that answers. The one that called listen(2) may have ended, as a daemon's first process has, and
/// its number may belong to another process.
bool ActiveSide::is_answered_by_our_own_namespace() const {
  const auto sender = link_->sender();
  return is_of_our_pid_namespace(sender ? sender->pid : peer_.pid, monotonic_now());
}

/// Returns false when the process that has our memory now is not one that it was kept for.
bool ActiveSide::meets_expected_accepter() {
  if (expected_.meets(peer_, link_->sender(), reply_.from_listening_process)) return true;
  if (expected_.processes()) wiring_of(*qp_).own_segment().forget_peer();
  return (request_.offer.flags & kOfferKeptSegment) == 0;
}

void ActiveSide::on_memory(PassedFd memory) {
  if (memory && check_peer_memfd(memory.get(), reply_.offer.memory)) return finish(memory.take());
  count_refusal(Refusal::descriptor);
  if (!peer_.same_user) distrust(peer_.uid);
  fail(ECONNREFUSED);
}

void ActiveSide::finish(UniqueFd memfd) {
  const bool has_memfd = static_cast<bool>(memfd);
  if (Status attached = attach(std::move(memfd)); !attached) return fail(attached.error().code);
  // A failure is ignored: a peer that has gone is noticed otherwise.
  if (has_memfd) static_cast<void>(link_->send(LinkPacket::memory_taken, {}));
  stage_ = Stage::established;
}

Status ActiveSide::attach(UniqueFd memfd) {
  if (memfd) {
    // Our own offer tells how much such a connection needs.
    const QueuePairOffer& own = request_.offer;
    const std::uint64_t own_bytes = own.inbox.bytes + own.spare.bytes - 2 * quiet_bytes_of(own);
    Status mapped = segment_.map(std::move(memfd), peer_, reply_.offer, {own_bytes}, std::nullopt);
    if (!mapped) return mapped;
  }
  // SO_PEERCRED names the process that called listen(). A forked worker has another number, and that of another user's
  // process may have been reused.
  const pid_t pid = reply_.from_listening_process && peer_.same_user ? peer_.pid : 0;
  return wiring_of(*qp_).attach(reply_.offer, segment_.release(), link_.shared(), {{peer_.pid, peer_.uid}, pid},
                                reply_.parameters.rnr_retry_count);
}

void ActiveSide::on_udp_reply(const ConnectReply& reply) {
  // The exchange is complete, as with SIDR: datagrams need no connection.
  link_.drop(nullptr);
  reply_ = reply;
  stage_ = Stage::established;
}

void ActiveSide::on_reject(const LinkInbox::Packet& packet) {
  const auto data = parse_reject(packet.bytes);
  fail(ECONNREFUSED);
  if (data) reply_.private_data = *data;
}

void ActiveSide::fail(int error) {
  search_.end(error);
  if (stage_ == Stage::awaiting_reply && (request_.offer.flags & kOfferKeptSegment) != 0) expected_.refused();
  const bool had_part = stage_ == Stage::awaiting_reply && parts_of(request_.offer) > 1;
  if (had_part && (error == ECONNREFUSED || link_.was_asked_for_memory())) expected_.refused_part();
  link_.drop(nullptr);
  stage_ = Stage::failed;
  error_ = error;
  reply_ = {};
}

}  // namespace ringsock::soft
