#include "core/device/soft/cm/acceptor.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/device/soft/cm/port_reservation.h"
#include "core/device/soft/segment_cache.h"

namespace ringsock::soft {

Result<std::unique_ptr<Acceptor>> Acceptor::open(const PortBinding& where, int backlog, Limits limits,
                                                 unsigned sharers) {
  auto socket = make_link_socket();
  if (!socket) return socket.error();
  for (unsigned sharer = 0;; ++sharer) {
    const AbstractAddress name(listening_name(where, sharer));
    if (::bind(socket->get(), name.get(), name.length) == 0) break;
    if (errno != EADDRINUSE || sharer + 1 == sharers) return Error::last("listen: bind AF_UNIX");
  }
  std::unique_ptr<Acceptor> out(new Acceptor(where, limits, out_of_the_way(std::move(*socket))));
  if (Status watched = out->watch_socket(); !watched) return watched.error();
  if (Status listening = out->set_backlog(backlog); !listening) return listening.error();
  return out;
}

Acceptor::Acceptor(const PortBinding& where, Limits limits, UniqueFd socket)
    : where_(where), limits_(limits), socket_(std::move(socket)), listening_pid_(::getpid()) {}

Acceptor::~Acceptor() = default;

Status Acceptor::set_backlog(int backlog) {
  if (::listen(socket_.get(), backlog) != 0) return Error::last("listen");
  return ok();
}

Status Acceptor::watch_socket() {
  epoll_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll_) return Error::last("epoll_create1");
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.ptr = nullptr;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket_.get(), &interest) != 0) return Error::last("epoll_ctl");
  epoll_pid_ = ::getpid();
  return ok();
}

Status Acceptor::start_over_after_fork() {
  if (epoll_pid_ == ::getpid()) return ok();
  // An epoll instance is shared across fork(2): what one process adds would wake the other for ever. The half-open
  // connections are the parent's to serve.
  half_open_.clear();
  return watch_socket();
}

int Acceptor::fd() const { return epoll_pid_ == ::getpid() ? epoll_.get() : socket_.get(); }

std::optional<Nanos> Acceptor::deadline() const {
  if (half_open_.empty()) return std::nullopt;
  return half_open_.front().expires;
}

void Acceptor::drop(Slot slot) {
  // Explicitly, because a forked child's copy of the descriptor would keep the entry.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot->link->fd(), nullptr);
  slot->link->set_manager(nullptr);
  slot->link->hang_up();
  half_open_.erase(slot);
}

void Acceptor::drop_expired(Nanos now) {
  while (!half_open_.empty() && half_open_.front().expires <= now) drop(half_open_.begin());
}

Result<IncomingRequest> Acceptor::next(Nanos now) {
  if (Status same_process = start_over_after_fork(); !same_process) return same_process.error();
  drop_expired(now);
  if (auto ready = serve_half_open()) return std::move(*ready);
  // Bounded, so that a flood of clients that say nothing does not keep the caller.
  constexpr int kMaxAccepts = 16;
  for (int i = 0; i < kMaxAccepts; ++i) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return Error::last("accept4");
    }
    if (auto ready = take_in(std::move(socket), now)) return std::move(*ready);
  }
  return Error{EAGAIN, "accept"};
}

std::optional<IncomingRequest> Acceptor::serve_half_open() {
  if (half_open_.empty()) return std::nullopt;
  std::array<epoll_event, 16> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const void* const tag = events[static_cast<std::size_t>(i)].data.ptr;
    if (tag == nullptr) continue;
    const auto is_it = [&](const HalfOpen& slot) { return slot.link.get() == tag; };
    const auto slot = std::find_if(half_open_.begin(), half_open_.end(), is_it);
    if (slot == half_open_.end()) continue;
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
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot->link->fd(), nullptr);
  auto out = check(*slot, std::move(*packet));
  half_open_.erase(slot);
  return out;
}

std::optional<IncomingRequest> Acceptor::take_in(UniqueFd socket, Nanos now) {
  HalfOpen fresh{std::make_unique<LinkInbox>(), std::make_shared<Link>(std::move(socket)),
                 now + limits_.half_open_time};
  fresh.link->set_manager(fresh.inbox.get());
  fresh.link->drain(1);
  if (auto packet = fresh.inbox->pop()) return check(fresh, std::move(*packet));
  if (fresh.inbox->is_finished()) return std::nullopt;
  if (half_open_.size() >= limits_.half_open) drop(half_open_.begin());
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.ptr = fresh.link.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fresh.link->fd(), &interest) == 0)
    half_open_.push_back(std::move(fresh));
  return std::nullopt;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the analyzer does not follow the list

std::optional<IncomingRequest> Acceptor::check(HalfOpen& from, LinkInbox::Packet packet) const {
  if (packet.type != LinkPacket::request) return std::nullopt;
  auto request = parse_request(packet.bytes);
  if (!request || request->space != where_.space) return std::nullopt;
  if (!overlap({request->space, request->destination, false}, where_)) return std::nullopt;
  const auto peer = identify_peer(from.link->fd());
  if (!peer) return std::nullopt;
  if (!addresses_.are_true(*peer, request->source, request->destination, from.link->fd(), monotonic_now())) {
    return std::nullopt;
  }
  IncomingRequest out;
  out.accepted_by_listening_process = listening_pid_ == ::getpid();
  if (request->space == verbs::PortSpace::tcp) {
    if (packet.fds.size() != 1 || (request->offer.flags & kOfferHasMemfd) == 0) return std::nullopt;
    // To the client the listening process has made the connection, whoever of its children accepts it.
    const auto maker = out.accepted_by_listening_process ? kept_for(*peer) : std::nullopt;
    auto segment = segment_cache().map(std::move(packet.fds.front()), maker);
    if (!segment) return std::nullopt;
    out.segment = std::move(*segment);
  }
  out.inbox = std::move(from.inbox);
  out.link = std::move(from.link);
  out.request = *request;
  out.peer = *peer;
  return out;
}

}  // namespace ringsock::soft
