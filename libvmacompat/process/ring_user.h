// What a socket that uses rings is told about the network, and where the Extra API finds it.
#pragma once

#include <cstdint>

#include "core/extra_api/api_socket.h"
#include "core/runtime/endpoint.h"

namespace ringsock::vma {

class RingSocket;

/// Played by endpoints in the table of descriptors. Called without locks.
class RingUser {
 public:
  /// Returns the part that answers the Extra API about rings (ring_socket.h). Threads: any.
  virtual RingSocket& api() noexcept = 0;

  // Called by the service thread:
  /// Addresses of this host have changed.
  virtual void follow_addresses() = 0;
  /// Netfilter rules have changed.
  virtual void follow_netfilter() = 0;

  /// Brings the entry in the statistics page up to date, as far as it is not always. Threads: any.
  virtual void refresh_statistics() {}
  /// Writes the next segments to VMA's log, at the level info. Returns false when it is no TCP connection on a ring.
  virtual bool trace(std::uint32_t /*segments*/) { return false; }

 protected:
  RingUser() = default;
  RingUser(const RingUser&) = default;
  RingUser& operator=(const RingUser&) = default;
  ~RingUser() = default;
};

/// Returns an endpoint as one, or null.
inline RingUser* ring_user_of(runtime::Endpoint& endpoint) {
  ApiSocket* const socket = endpoint.as_api_socket();
  return socket != nullptr ? socket->as_ring_user() : nullptr;
}

/// Calls `visit` of all sockets of the process that may use rings. Holds no lock of the table or of a socket meanwhile.
void for_each_ring_user(void (RingUser::*visit)());

}  // namespace ringsock::vma
