// Receivers of the packets of a flow.
#pragma once

#include "core/ethernet/incoming.h"
#include "core/runtime/endpoint.h"

namespace ringsock::ethernet {

/// What a socket has done with a packet.
enum class Delivery {
  refused,  ///< the packet is not for this socket
  done,     ///< copied to a waiting call, or dropped and counted
  waits,    ///< kept for a later call
};

/// A socket of any protocol, as rings see it. The thread that polls the ring calls these functions under the ring's
/// receive lock: they must neither sleep nor call the ring.
class PacketSink {
 public:
  /// Returns whether it accepts packets from that source: it may be connected to another one.
  [[nodiscard]] virtual bool accepts(const wire::EndName& source) const noexcept = 0;
  /// Takes an accepted packet, or drops and counts it when there is no room.
  virtual Delivery deliver(Incoming& incoming, const wire::EndName& source) noexcept = 0;
  /// The endpoint whose watchers are told.
  virtual runtime::Endpoint& endpoint() noexcept = 0;
  /// SO_REUSEPORT: flows are spread over all such sockets. Otherwise the socket that was bound last gets all packets
  /// (udp(7)).
  [[nodiscard]] virtual bool shares_port() const noexcept = 0;
  /// Returns whether it has kept packets that nobody has read yet.
  [[nodiscard]] virtual bool has_waiting() const noexcept = 0;

 protected:
  ~PacketSink() = default;
};

}  // namespace ringsock::ethernet
