#include "core/device/soft/cm/connector.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/refusals.h"
#include "core/device/soft/cm/port_lookup.h"
#include "core/device/soft/cm/port_reservation.h"
#include "core/device/soft/cm/sock_diag.h"

namespace ringsock::soft {
namespace {

/// Errors of connect(2) that say that nobody of ours listens under a name.
bool is_nobody(int error) { return error == ECONNREFUSED || error == EPROTOTYPE || error == EACCES || error == EPERM; }

/// Whether the owners of names whose backlogs were full may be waited for: a look costs the more the more AF_UNIX
/// sockets there are, and anybody may make those. Forgetful: of two names that share a place the newer one is known.
/// Threads: any.
class FullNames {
 public:
  static constexpr Nanos kRemembered{1'000'000'000};

  [[nodiscard]] std::optional<bool> find(const std::string& name, Nanos now) const {
    const std::uint64_t key = key_of(name);
    const Place& place = places_[key % places_.size()];
    const std::uint64_t found = place.key_and_verdict.load(std::memory_order_acquire);
    if (found >> 1 != key >> 1 || now >= place.until.load(std::memory_order_relaxed)) return std::nullopt;
    return (found & 1) != 0;
  }
  void remember(const std::string& name, bool verdict, Nanos now) {
    const std::uint64_t key = key_of(name);
    Place& place = places_[key % places_.size()];
    place.until.store(now + kRemembered, std::memory_order_relaxed);
    place.key_and_verdict.store((key & ~std::uint64_t{1}) | (verdict ? 1 : 0), std::memory_order_release);
  }

 private:
  struct Place {
    std::atomic<std::uint64_t> key_and_verdict{0};
    std::atomic<Nanos> until{Nanos(0)};
  };
  static std::uint64_t key_of(const std::string& name) { return std::hash<std::string>{}(name); }
  std::array<Place, 64> places_;
};
constinit FullNames full_names;

}  // namespace

Connector::Connector(verbs::PortSpace space, const SocketAddress& destination, UniqueFd socket, ConnectTimes times,
                     Nanos now, Unproven unproven)
    : destination_{space, destination, false},
      socket_(std::move(socket)),
      bindings_(listener_bindings(destination_)),
      times_(times),
      unproven_(unproven) {
  start(now);
}

void Connector::start(Nanos now) {
  deadline_ = now + times_.total;
  retry_at_ = now;
  interval_ = times_.first_retry;
}

/// Before connecting: a listener that is woken finds the request at once.
Status Connector::ask_for_owner() {
  if (!socket_) {
    auto fresh = make_link_socket();
    if (!fresh) return fresh.error();
    socket_ = std::move(*fresh);
  }
  port_owner_ = owner_by_kernel(destination_.space, destination_.address, socket_.get());
  return ok();
}

Result<Connector::Connected> Connector::attempt(Nanos now) {
  if (Status asked = ask_for_owner(); !asked) return asked.error();
  for (const PortBinding& binding : bindings_) {
    auto connected = try_binding(binding);
    if (connected) return connected;
    const int error = connected.error().code;
    if (is_nobody(error)) continue;
    if (error != EAGAIN) return connected;
    // Somebody listens here: a less specific name must not get what is his.
    if (now >= deadline_) return Error{ETIMEDOUT, "connect: backlog full"};
    retry_at_ = std::min(now + interval_, deadline_);
    interval_ = std::min(interval_ * 2, times_.longest_retry);
    return connected;
  }
  return Error{ECONNREFUSED, "connect: nobody listens"};
}

/// Of listeners that share the binding another one each time.
Result<Connector::Connected> Connector::try_binding(const PortBinding& binding) {
  static std::atomic<unsigned> turn{static_cast<unsigned>(::getpid())};
  const auto names = sharing_listeners(binding);
  if (names.empty()) return Error{ECONNREFUSED, "connect: nobody listens"};
  return try_name(names.size() == 1 ? names.front() : names[turn.fetch_add(1) % names.size()]);
}

Result<Connector::Connected> Connector::try_name(const std::string& name) {
  if (!socket_) {
    auto fresh = make_link_socket();
    if (!fresh) return fresh.error();
    socket_ = std::move(*fresh);
  }
  const AbstractAddress address(name);
  if (::connect(socket_.get(), address.get(), address.length) != 0) {
    const Error error = Error::last("connect");
    return error.code != EAGAIN || is_worth_waiting(name) ? error
                                                          : Error{ECONNREFUSED, "connect: an impostor's backlog"};
  }
  UniqueFd connected = std::move(socket_);
  const auto peer = identify_peer(connected.get());
  if (!peer) return peer.error();
  if (!is_trusted_on_port(*peer, destination_, port_owner_, unproven_)) {
    count_refusal(Refusal::port_owner);
    return Error{ECONNREFUSED, "connect: not the owner of the port"};
  }
  return Connected{std::move(connected), *peer};
}

/// Whether the owner of a name, whose backlog is full, may be the port's.
bool Connector::is_worth_waiting(const std::string& name) {
  if (name == owner_) return true;
  if (std::find(impostors_.begin(), impostors_.end(), name) != impostors_.end()) return false;
  const Nanos now = monotonic_now();
  auto is_worth = full_names.find(name, now);
  if (!is_worth) {
    is_worth = may_be_the_ports(name);
    full_names.remember(name, *is_worth, now);
  }
  if (*is_worth) {
    owner_ = name;
  } else {
    count_refusal(Refusal::port_owner);
    impostors_.push_back(name);
  }
  return *is_worth;
}

/// The kernel tells by a dump of all names only.
bool Connector::may_be_the_ports(const std::string& name) const {
  const bool has_other_way = unproven_ == Unproven::refuse;
  constexpr std::size_t kMostSockets = 4096;
  const auto holders =
      named_holders(destination_.space, destination_.address.port(), has_other_way ? kMostSockets : SIZE_MAX);
  if (!holders) return !has_other_way;
  return std::none_of(holders->begin(), holders->end(), [&](const NamedHolder& holder) {
    return holder.text == name && !is_trusted_on_port(holder.uid, destination_, port_owner_, unproven_);
  });
}

}  // namespace ringsock::soft
