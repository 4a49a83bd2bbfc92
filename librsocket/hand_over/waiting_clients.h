// Clients of a listener's ring that nobody has accepted, when the ring ends.
#pragma once

#include <vector>

#include "core/base/unique_fd.h"
#include "librsocket/hand_over/relay.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// Clients that rings have answered, on their way to the backlogs of the kernel's listeners, each with a relay in
/// between.
class WaitingClients {
 public:
  /// Takes the clients of this listener, and connects to it by the kernel for each of them.
  void take_from(StreamSocket& listener);
  /// Starts the relay. A client that cannot be handed over is lost, with a warning.
  void hand_over();

 private:
  std::vector<RelayedConnection> relayed_;
  std::vector<UniqueFd> relays_;
};

}  // namespace ringsock::rs
