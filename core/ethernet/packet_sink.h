// Who gets the packets of a flow.
#pragma once

#include "core/ethernet/incoming.h"
#include "core/runtime/endpoint.h"

namespace ringsock::ethernet {

/// What a socket has done with a packet.
enum class Delivery {
  refused,  ///< it is not for this socket
  done,     ///< given to a call, or dropped and counted
  waits,    ///< for somebody who receives
};

/// A socket of any protocol, as rings know it. Its functions are called under the ring's receive lock, by whoever polls
/// the ring: they must neither sleep nor call the ring.
class PacketSink {
 public:
  /// Whether it takes packets from there: it may be connected to somebody else.
  [[nodiscard]] virtual bool accepts(const wire::EndName& source) const noexcept = 0;
  /// Takes what it accepts, or drops and counts it when there is no room.
  virtual Delivery deliver(Incoming& incoming, const wire::EndName& source) noexcept = 0;
  /// Whose watchers hear of it.
  virtual runtime::Endpoint& endpoint() noexcept = 0;
  /// SO_REUSEPORT: flows are spread over all such sockets. Else the one that came last takes all (udp(7)).
  [[nodiscard]] virtual bool shares_port() const noexcept = 0;

 protected:
  ~PacketSink() = default;
};

}  // namespace ringsock::ethernet
