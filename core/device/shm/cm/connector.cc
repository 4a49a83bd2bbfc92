#include "core/device/shm/cm/connector.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/refusals.h"
#include "core/device/shm/names/lately.h"
#include "core/device/shm/names/port_lookup.h"
#include "core/device/shm/names/port_reservation.h"
#include "core/device/shm/names/sock_diag.h"

namespace ringsock::soft {
namespace {

/// Returns whether the error of connect(2) means that no usable socket listens under a name.
bool is_nobody(int error) { return error == ECONNREFUSED || error == EPROTOTYPE || error == EACCES || error == EPERM; }

constexpr Nanos kFullNamesRemembered{1'000'000'000};
constexpr Nanos kLoneNamesRemembered{5'000'000};

/// Remembers for a moment to whom ports belong according to the kernel, and which were reached: with the process that
/// listens, where only one does. Threads: any.
class PortOwners {
 public:
  std::optional<uid_t> find(const PortBinding& port) {
    const auto known = known_of(port);
    return known ? std::optional(known->owner) : std::nullopt;
  }
  bool was_reached(const PortBinding& port) {
    const auto known = known_of(port);
    return known && known->was_reached;
  }
  std::optional<PeerIdentity> listener_of(const PortBinding& port) {
    const auto known = known_of(port);
    return known && known->was_reached ? known->listener : std::nullopt;
  }
  void remember(const PortBinding& port, uid_t owner) {
    const std::unique_lock guard(lock_, std::try_to_lock);
    if (!guard) return;
    auto place = place_of(port);
    if (place == known_.end()) place = known_.begin() + static_cast<std::ptrdiff_t>(next_++ % known_.size());
    *place = {port.space, port.address, owner, monotonic_now() + kBelieved, false, std::nullopt};
  }
  /// Notes whether a connection has been made to a port that is remembered.
  /// @param listener  the process that listens there, nothing: it is not the only one, or not known
  void note(const PortBinding& port, bool was_reached, const std::optional<PeerIdentity>& listener = std::nullopt) {
    const std::unique_lock guard(lock_, std::try_to_lock);
    if (!guard) return;
    const auto place = place_of(port);
    if (place == known_.end()) return;
    place->was_reached = was_reached;
    place->listener = listener;
  }

 private:
  /// Within this time a port's change of owner counts as a race with connect(2).
  static constexpr Nanos kBelieved{5'000'000};
  struct Known {
    verbs::PortSpace space{};
    SocketAddress address;
    uid_t owner = 0;
    Nanos until{};
    bool was_reached = false;
    std::optional<PeerIdentity> listener;
  };
  using Places = std::array<Known, 16>;
  Places::iterator place_of(const PortBinding& port) {
    return std::ranges::find_if(
        known_, [&](const Known& one) { return one.space == port.space && one.address == port.address; });
  }
  std::optional<Known> known_of(const PortBinding& port) {
    const std::unique_lock guard(lock_, std::try_to_lock);
    if (!guard) return std::nullopt;
    const auto place = place_of(port);
    if (place == known_.end() || monotonic_now() >= place->until) return std::nullopt;
    return *place;
  }
  Mutex lock_;  ///< only try_lock() is used: in a child of fork(2) it may be locked for ever
  Places known_;
  std::size_t next_ = 0;
};

/// What the connectors of this process remember.
struct ConnectionAttempts {
  static constexpr ProcessPart kPart = ProcessPart::connection_attempts;
  /// Whether to wait for the owners of names whose backlogs were full. The cost of finding out grows with the number of
  /// AF_UNIX sockets, which any user can make.
  Lately full_names;
  /// Names of listeners that did not share their binding. A listener that joins later gets clients after a short delay.
  Lately lone_names;
  PortOwners port_owners;
  std::atomic<unsigned> turn{static_cast<unsigned>(::getpid())};  ///< of listeners that share a binding
};

ConnectionAttempts& attempts() { return process_state<ConnectionAttempts>(); }

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

void Connector::ask_kernel(int socket) {
  port_owner_ = owner_by_kernel(destination_.space, destination_.address, socket);
  is_fresh_ = true;
  if (port_owner_) attempts().port_owners.remember(destination_, *port_owner_);
}

/// Asked before connecting, so that a listener that wakes up finds the request at once.
void Connector::ask_for_owner() {
  const auto known = attempts().port_owners.find(destination_);
  is_fresh_ = !known;
  if (known) {
    port_owner_ = *known;
  } else {
    ask_kernel(socket_.get());
  }
}

Status Connector::need_socket() {
  if (socket_) return ok();
  auto fresh = make_link_socket();
  if (!fresh) return fresh.error();
  socket_ = std::move(*fresh);
  return ok();
}

Result<Connector::Connected> Connector::attempt(Nanos now) {
  if (Status made = need_socket(); !made) return made.error();
  ask_for_owner();
  for (const PortBinding& binding : bindings_) {
    auto connected = try_binding(binding);
    if (connected) {
      attempts().port_owners.note(destination_, true,
                                  connected->is_lone ? std::optional(connected->peer) : std::nullopt);
      return connected;
    }
    const int error = connected.error().code;
    if (is_nobody(error)) continue;
    if (error != EAGAIN) return connected;
    // A socket listens under this name, so a less specific name must not get its client.
    if (now >= deadline_) return Error{ETIMEDOUT, "connect: backlog full"};
    retry_at_ = std::min(now + interval_, deadline_);
    interval_ = std::min(interval_ * 2, times_.longest_retry);
    return connected;
  }
  attempts().port_owners.note(destination_, false);
  return Error{ECONNREFUSED, "connect: nobody listens"};
}

bool Connector::has_lately_reached(verbs::PortSpace space, const SocketAddress& destination) {
  return attempts().port_owners.was_reached({space, destination, false});
}

std::optional<PeerIdentity> Connector::listener_lately_reached() const {
  return attempts().port_owners.listener_of(destination_);
}

/// Tries a different listener each time when several share the binding.
Result<Connector::Connected> Connector::try_binding(const PortBinding& binding) {
  if (std::string name = listening_name(binding); attempts().lone_names.find(name)) {
    auto connected = try_name(name);
    if (connected) connected->is_lone = true;
    if (connected || !is_nobody(connected.error().code)) return connected;
  }
  const auto names = sharing_listeners(binding);
  if (names.empty()) return Error{ECONNREFUSED, "connect: nobody listens"};
  if (names.size() > 1) return try_name(names[attempts().turn.fetch_add(1) % names.size()]);
  auto connected = try_name(names.front());
  if (!connected) return connected;
  attempts().lone_names.remember(names.front(), true, monotonic_now() + kLoneNamesRemembered);
  connected->is_lone = true;
  return connected;
}

Result<Connector::Connected> Connector::try_name(const std::string& name) {
  if (Status made = need_socket(); !made) return made.error();
  const AbstractAddress address(name);
  if (::connect(socket_.get(), address.get(), address.length) != 0) {
    const Error error = Error::last("connect");
    return error.code != EAGAIN || is_worth_waiting(name) ? error
                                                          : Error{ECONNREFUSED, "connect: an impostor's backlog"};
  }
  UniqueFd connected = std::move(socket_);
  const auto peer = identify_peer(connected.get());
  if (!peer) return peer.error();
  if (!may_serve(*peer, connected.get())) {
    count_refusal(Refusal::port_owner);
    return Error{ECONNREFUSED, "connect: not the owner of the port"};
  }
  return Connected{std::move(connected), *peer};
}

bool Connector::may_serve(const PeerIdentity& peer, int socket) {
  if (is_trusted_on_port(peer, destination_, port_owner_, unproven_)) return true;
  if (is_fresh_) return false;
  ask_kernel(socket);
  return is_trusted_on_port(peer, destination_, port_owner_, unproven_);
}

/// Returns whether the owner of a name whose backlog is full may be the port's owner.
bool Connector::is_worth_waiting(const std::string& name) {
  if (name == owner_) return true;
  if (std::find(impostors_.begin(), impostors_.end(), name) != impostors_.end()) return false;
  auto is_worth = attempts().full_names.find(name);
  if (!is_worth) {
    is_worth = may_be_the_ports(name);
    attempts().full_names.remember(name, *is_worth, monotonic_now() + kFullNamesRemembered);
  }
  if (*is_worth) {
    owner_ = name;
  } else {
    count_refusal(Refusal::port_owner);
    impostors_.push_back(name);
  }
  return *is_worth;
}

/// Asks the kernel, which needs a dump of all names.
bool Connector::may_be_the_ports(const std::string& name) {
  const bool has_other_way = unproven_ == Unproven::refuse;
  constexpr std::size_t kMostSockets = 4096;
  const auto holders =
      named_holders(destination_.space, destination_.address.port(), has_other_way ? kMostSockets : SIZE_MAX);
  if (!holders) return !has_other_way;
  if (!is_fresh_) ask_kernel(socket_.get());
  return std::none_of(holders->begin(), holders->end(), [&](const NamedHolder& holder) {
    return holder.text == name && !is_trusted_on_port(holder.uid, destination_, port_owner_, unproven_);
  });
}

}  // namespace ringsock::soft
