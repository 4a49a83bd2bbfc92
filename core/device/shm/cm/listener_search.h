// The search for a listener, from the first look to the connected socket.
#pragma once

#include <optional>

#include "core/device/shm/cm/connector.h"
#include "core/device/shm/names/port_reservation.h"
#include "core/device/shm/names/silent_ports.h"

namespace ringsock::soft {

/// Finds the listener of one destination, and remembers one that did not answer. Threads: one at a time.
class ListenerSearch {
 public:
  ListenerSearch(SilentPorts& silent_ports, verbs::PortSpace space, ConnectTimes times)
      : silent_ports_(silent_ports), space_(space), times_(times) {}

  /// verbs::ConnectionId::have_other_way(). Call it first.
  void have_other_way(Nanos patience);
  /// @param port  the caller's, whose socket becomes the link
  void aim(const SocketAddress& destination, PortReservation& port);
  /// Connector::listener_lately_reached().
  [[nodiscard]] std::optional<PeerIdentity> listener_lately_reached() const {
    return connector_->listener_lately_reached();
  }
  /// Joins the listener's backlog if that works at once. Failures are left to take().
  /// @return the connection that take() will return, null: none
  const Connector::Connected* join_early();
  /// Starts the time-outs anew.
  void start() { connector_->start(monotonic_now()); }

  struct Found {
    Connector::Connected connection;
    bool is_early;  ///< it was made by join_early(), and the listener may have given it up
  };
  /// Returns the connection. Errors: those of Connector::attempt().
  Result<Found> take();
  [[nodiscard]] Nanos retry_at() const { return connector_->retry_at(); }
  [[nodiscard]] Nanos deadline() const { return connector_->deadline(); }
  /// The search is over. @param error  with which the connection fails, 0: it goes on
  void end(int error);

 private:
  SilentPorts& silent_ports_;
  const verbs::PortSpace space_;
  ConnectTimes times_;
  Unproven unproven_ = Unproven::accept;
  SocketAddress destination_;
  std::optional<Connector> connector_;
  std::optional<Connector::Connected> early_;
};

}  // namespace ringsock::soft
