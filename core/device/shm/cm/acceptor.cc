#include "core/device/shm/cm/acceptor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/close_elsewhere.h"
#include "core/base/refusals.h"
#include "core/device/shm/link/open_memory.h"
#include "core/device/shm/link/rights_gate.h"
#include "core/device/shm/link/strangers.h"
#include "core/device/shm/memory/segment_cache.h"
#include "core/device/shm/names/port_reservation.h"

namespace ringsock::soft {

namespace {

constexpr std::size_t kAlwaysHalfOpen = 2;
/// No fork_generation().
constexpr unsigned kByAnyProcess = ~0U;

/// The share of the process's descriptors for clients that have not sent their request.
std::size_t share_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return std::max<std::size_t>(kAlwaysHalfOpen, limit.rlim_cur / 8);
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::take_name(const PortBinding& where, Limits limits, unsigned sharers,
                                                      unsigned made_at) {
  auto socket = make_link_socket();
  if (!socket) return socket.error();
  for (unsigned sharer = 0;; ++sharer) {
    const AbstractAddress name(listening_name(where, sharer));
    if (::bind(socket->get(), name.get(), name.length) == 0) break;
    if (errno != EADDRINUSE || sharer + 1 == sharers) return Error::last("listen: bind AF_UNIX");
  }
  look_at_uid_map();
  return std::unique_ptr<Acceptor>(new Acceptor(where, limits, out_of_the_way(std::move(*socket)), made_at));
}

Result<std::unique_ptr<Acceptor>> Acceptor::open(const PortBinding& where, int backlog, Limits limits,
                                                 unsigned sharers) {
  auto out = take_name(where, limits, sharers, fork_generation());
  if (!out) return out;
  if (Status watched = (*out)->watch_socket(); !watched) return watched.error();
  if (Status listening = (*out)->set_backlog(backlog); !listening) return listening.error();
  return out;
}

Result<std::unique_ptr<Acceptor>> Acceptor::prepare(const PortBinding& where, Limits limits) {
  return take_name(where, limits, 1, kByAnyProcess);
}

Acceptor::Acceptor(const PortBinding& where, Limits limits, UniqueFd socket, unsigned made_at)
    : where_(where), limits_(limits), socket_(std::move(socket)), made_at_(made_at), epoll_made_at_(made_at) {}

/// Connections that were not accepted may hold descriptors that strangers passed; the kernel closes these with the
/// socket.
Acceptor::~Acceptor() {
  if (epoll_made_at_ != fork_generation()) leave_half_open_to_parent();
  if (!has_rights_gate()) close_elsewhere(std::move(socket_));
}

Status Acceptor::set_backlog(int backlog) {
  if (Status watched = start_over_after_fork(); !watched) return watched;
  if (::listen(socket_.get(), backlog) != 0) return Error::last("listen");
  return ok();
}

Status Acceptor::watch_socket() {
  half_open_epoll_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  epoll_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll_ || !half_open_epoll_) return Error::last("epoll_create1");
  for (const int part : {socket_.get(), half_open_epoll_.get()}) {
    if (has_ended_ && part == socket_.get()) continue;  // readable for ever
    epoll_event interest{};
    interest.events = EPOLLIN;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, part, &interest) != 0) return Error::last("epoll_ctl");
  }
  epoll_made_at_ = fork_generation();
  return ok();
}

Status Acceptor::start_over_after_fork() {
  if (epoll_made_at_ == fork_generation()) return ok();
  // An epoll instance is shared across fork(2): what one process adds would wake the other for ever.
  leave_half_open_to_parent();
  return watch_socket();
}

/// Leaves half-open connections to the parent, which serves them. A link that is destroyed without being abandoned
/// first stops accepting descriptors, and the client's memory would not reach the parent.
void Acceptor::leave_half_open_to_parent() {
  for (const HalfOpen& slot : half_open_) slot.link->abandon(false);
  half_open_.clear();
}

void Acceptor::end_for_all() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

int Acceptor::fd() const { return epoll_made_at_ == fork_generation() ? epoll_.get() : socket_.get(); }

/// The parent's is none of a forked child, which makes its own when it first accepts.
int Acceptor::half_open_fd() const { return epoll_made_at_ == fork_generation() ? half_open_epoll_.get() : -1; }

std::optional<Nanos> Acceptor::deadline() const {
  if (half_open_.empty()) return std::nullopt;
  return half_open_.front().expires;
}

void Acceptor::drop(Slot slot) {
  // Explicitly, because a forked child's copy of the descriptor would keep the entry.
  ::epoll_ctl(half_open_epoll_.get(), EPOLL_CTL_DEL, slot->link->fd(), nullptr);
  refuse(*slot);
  half_open_.erase(slot);
}

void Acceptor::drop_expired(Nanos now) {
  while (!half_open_.empty() && half_open_.front().expires <= now) drop(half_open_.begin());
}

Result<IncomingRequest> Acceptor::next(Nanos now) {
  if (Status same_process = start_over_after_fork(); !same_process) return same_process.error();
  drop_expired(now);
  int work = kMaxWork;
  if (auto ready = serve_half_open(work)) return std::move(*ready);
  // accept4(2) costs ten times as much when no client waits. poll(2) itself fails where RLIMIT_NOFILE is 0.
  pollfd queue{socket_.get(), POLLIN, 0};
  for (; work > 0 && !has_ended_ && ::poll(&queue, 1, 0) != 0; --work) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EINVAL) {
        // Shut down. It would be readable for ever.
        has_ended_ = true;
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
        break;
      }
      return Error::last("accept4");
    }
    // A request of an older client, sent before this client called connect(2), is served first.
    if (auto older = serve_half_open(work)) {
      keep(make_half_open(std::move(socket), now));
      return std::move(*older);
    }
    if (auto ready = take_in(std::move(socket), now)) return std::move(*ready);
  }
  return Error{EAGAIN, "accept"};
}

std::optional<IncomingRequest> Acceptor::serve_half_open(int& work) {
  if (half_open_.empty()) return std::nullopt;
  // Half of the work is reserved for new connections.
  std::array<epoll_event, kMaxWork / 2> events{};
  const int count = ::epoll_wait(half_open_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const void* const tag = events[static_cast<std::size_t>(i)].data.ptr;
    const auto is_it = [&](const HalfOpen& slot) { return slot.link.get() == tag; };
    const auto slot = std::find_if(half_open_.begin(), half_open_.end(), is_it);
    if (slot == half_open_.end()) continue;
    --work;
    if (auto ready = serve(slot)) return ready;
  }
  return std::nullopt;
}

std::optional<IncomingRequest> Acceptor::serve(Slot slot) {
  slot->link->drain(1);
  auto packet = slot->inbox->pop();
  if (!packet) {
    if (slot->inbox->is_finished()) drop(slot);
    return std::nullopt;
  }
  const Outcome outcome = look_at(*slot, std::move(*packet));
  if (outcome == Outcome::waits) return std::nullopt;
  ::epoll_ctl(half_open_epoll_.get(), EPOLL_CTL_DEL, slot->link->fd(), nullptr);
  std::optional<IncomingRequest> out;
  if (outcome == Outcome::ready) {
    out = finish(*slot);
  } else {
    refuse(*slot);
  }
  half_open_.erase(slot);
  return out;
}

Acceptor::HalfOpen Acceptor::make_half_open(UniqueFd socket, Nanos now) const {
  HalfOpen fresh{std::make_unique<LinkInbox>(), std::make_shared<Link>(std::move(socket)), now + limits_.half_open_time,
                 std::nullopt, std::nullopt};
  fresh.link->set_manager(fresh.inbox.get());
  return fresh;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the analyzer does not follow the list of half-open connections

/// Waits a few microseconds for it: a client sends its request right after connect(2), and keep() costs more.
std::optional<LinkInbox::Packet> Acceptor::first_packet(HalfOpen& fresh) {
  constexpr Nanos kPatience = std::chrono::microseconds(10);
  const Nanos end = monotonic_now() + kPatience;
  for (;;) {
    fresh.link->drain(1);
    auto packet = fresh.inbox->pop();
    if (packet || fresh.inbox->is_finished() || monotonic_now() >= end) return packet;
  }
}

std::optional<IncomingRequest> Acceptor::take_in(UniqueFd socket, Nanos now) {
  HalfOpen fresh = make_half_open(std::move(socket), now);
  if (auto packet = first_packet(fresh)) {
    const Outcome outcome = look_at(fresh, std::move(*packet));
    if (outcome == Outcome::ready) return finish(fresh);
    if (outcome == Outcome::refused) {
      refuse(fresh);
      return std::nullopt;
    }
  }
  if (fresh.inbox->is_finished()) return std::nullopt;
  keep(std::move(fresh));
  return std::nullopt;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the analyzer does not follow the list

bool Acceptor::identify(HalfOpen& slot) {
  if (slot.peer) return true;
  const auto peer = identify_peer(slot.link->fd());
  if (peer) slot.peer = *peer;
  return slot.peer.has_value();
}

/// Keeps a connection that waits for its client's next packet.
void Acceptor::keep(HalfOpen fresh) {
  if (!identify(fresh)) return;
  make_room_for(fresh.peer->uid);
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.ptr = fresh.link.get();
  half_open_.push_back(std::move(fresh));
  if (::epoll_ctl(half_open_epoll_.get(), EPOLL_CTL_ADD, half_open_.back().link->fd(), &interest) != 0)
    half_open_.pop_back();
}

/// Drops connections for a new one: every link uses a descriptor that the process may need, and a slot that another
/// client may need.
void Acceptor::make_room_for(uid_t user) {
  if (half_open_.size() < kAlwaysHalfOpen) return;
  const std::size_t most = std::min(limits_.half_open, share_of_descriptors());
  const std::size_t most_of_user = std::min(limits_.half_open_of_user, most / 2);
  if (half_open_.size() < most_of_user) return;
  std::map<uid_t, std::size_t> links;
  for (const HalfOpen& slot : half_open_) ++links[slot.peer->uid];
  const auto drop_oldest_of = [&](uid_t whose) {
    count_refusal(Refusal::user_budget);
    drop(std::find_if(half_open_.begin(), half_open_.end(),
                      [&](const HalfOpen& slot) { return slot.peer->uid == whose; }));
  };
  if (!is_own_uid(user) && links[user] >= most_of_user) {
    drop_oldest_of(user);
  } else if (half_open_.size() >= most) {
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    drop_oldest_of(std::max_element(links.begin(), links.end(), fewer)->first);
  }
}

/// Shuts the link down, so that the client notices it at once even if a forked child has a copy of the descriptor.
void Acceptor::refuse(HalfOpen& slot) {
  slot.link->set_manager(nullptr);
  slot.link->hang_up();
}

IncomingRequest Acceptor::finish(HalfOpen& from) {
  IncomingRequest out = std::move(*from.request);
  out.inbox = std::move(from.inbox);
  out.link = std::move(from.link);
  return out;
}

Acceptor::Outcome Acceptor::look_at(HalfOpen& from, LinkInbox::Packet packet) const {
  if (!from.request) return check(from, packet);
  if (packet.type == LinkPacket::memory) return take_memory(from, std::move(packet.memory));
  return Outcome::refused;
}

/// Does cheap checks first: the packet itself, then what the kernel says of its sender.
Acceptor::Outcome Acceptor::check(HalfOpen& from, const LinkInbox::Packet& packet) const {
  auto request = packet.type == LinkPacket::request ? parse_request(packet.bytes) : Error{EPROTO, "accept: packet"};
  if (!request || request->space != where_.space || !overlap({request->space, request->destination, false}, where_) ||
      (request->space == verbs::PortSpace::tcp && (request->offer.flags & kOfferHasMemfd) == 0) ||
      (private_data_check_ != nullptr && !private_data_check_(request->private_data.view()))) {
    count_refusal(Refusal::request);
    return Outcome::refused;
  }
  if (!identify(from)) return Outcome::refused;
  const PeerIdentity* const peer = &*from.peer;
  // A process outside of our PID namespace, which takes no answer from us. Refused here it asks the kernel; accepted,
  // the application would see a client that has gone.
  if (peer->pid == 0) {
    count_refusal(Refusal::port_owner);
    return Outcome::refused;
  }
  if (!peer->same_user) {
    from.link->set_stranger(peer->uid);
    if (is_distrusted(peer->uid)) {
      count_refusal(Refusal::descriptor);
      return Outcome::refused;
    }
  } else {
    from.link->trust_peer();
  }
  if (!addresses_.are_true(*peer, request->source, request->destination, from.link->fd(), monotonic_now()))
    return Outcome::refused;
  from.request.emplace();
  from.request->request = *request;
  from.request->peer = *peer;
  from.request->accepted_by_listening_process = made_at_ == fork_generation();
  return request->space == verbs::PortSpace::tcp ? find_memory(from) : Outcome::ready;
}

/// Gets the requester's memory by the cheapest way: a kept mapping, its descriptor in /proc, or over the link.
Acceptor::Outcome Acceptor::find_memory(HalfOpen& from) const {
  IncomingRequest& incoming = *from.request;
  const QueuePairOffer& offer = incoming.request.offer;
  const PeerIdentity& peer = incoming.peer;
  // Processes of that user have had it, and may have shown it to any process.
  const bool was_kept = (offer.flags & kOfferKeptSegment) != 0;
  const bool is_for_us = !was_kept || is_own_uid(offer.memory.kept_for_uid);
  const bool may_have_it =
      is_for_us || (offer.memory.kept_for_uid == kOneProcessOnly && incoming.accepted_by_listening_process);
  if (const auto maker = kept_for(peer); maker && was_kept && may_have_it) {
    incoming.segment = segment_cache().find(offer.memory, *maker);
    if (incoming.segment) return Outcome::ready;
  }
  if (!is_for_us) return Outcome::refused;
  if (parts_of(offer) > 1) {
    if (!peer.same_user || peer.pid <= 0 || was_kept) return Outcome::refused;
    incoming.segment = segment_cache().find_part(offer.memory, {peer.pid, peer.uid}, part_of(offer));
    if (incoming.segment) return Outcome::ready;
  }
  if (peer.same_user && peer.pid > 0) {
    auto memfd = open_memory_of(peer.pid, offer.memory.descriptor, offer.memory.inode);
    if (memfd && check_peer_memfd(memfd->get(), offer.memory)) {
      incoming.memfd = std::move(*memfd);
      return Outcome::ready;
    }
  }
  if (parts_of(offer) > 1) return Outcome::refused;  // the client passes it to nobody
  // So many closes are stuck that no more descriptors of strangers are let in.
  if (!peer.same_user && closers_are_busy()) {
    count_refusal(Refusal::descriptor);
    return Outcome::refused;
  }
  return from.link->ask_for_memory() ? Outcome::waits : Outcome::refused;
}

Acceptor::Outcome Acceptor::take_memory(HalfOpen& from, PassedFd memory) const {
  IncomingRequest& incoming = *from.request;
  if (!memory) return Outcome::refused;
  if (!check_peer_memfd(memory.get(), incoming.request.offer.memory)) {
    count_refusal(Refusal::descriptor);
    if (!incoming.peer.same_user) distrust(incoming.peer.uid);
    return Outcome::refused;
  }
  incoming.memfd = memory.take();
  return Outcome::ready;
}

}  // namespace ringsock::soft
