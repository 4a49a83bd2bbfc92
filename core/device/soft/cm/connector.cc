#include "core/device/soft/cm/connector.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/device/soft/cm/port_reservation.h"

namespace ringsock::soft {
namespace {

/// Errors of connect(2) that say that nobody of ours listens under a name.
bool is_nobody(int error) { return error == ECONNREFUSED || error == EPROTOTYPE || error == EACCES || error == EPERM; }

}  // namespace

Connector::Connector(verbs::PortSpace space, const SocketAddress& destination, UniqueFd socket, ConnectTimes times,
                     Nanos now)
    : destination_{space, destination, false},
      socket_(std::move(socket)),
      bindings_(listener_bindings(destination_)),
      times_(times) {
  start(now);
}

void Connector::start(Nanos now) {
  deadline_ = now + times_.total;
  retry_at_ = now;
  interval_ = times_.first_retry;
}

Result<Connector::Connected> Connector::attempt(Nanos now) {
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
  if (::connect(socket_.get(), address.get(), address.length) != 0) return Error::last("connect");
  UniqueFd connected = std::move(socket_);
  const auto peer = identify_peer(connected.get());
  if (!peer) return peer.error();
  if (!is_trusted_on_port(*peer, destination_)) return Error{ECONNREFUSED, "connect: not the owner of the port"};
  return Connected{std::move(connected), *peer};
}

}  // namespace ringsock::soft
