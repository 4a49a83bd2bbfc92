#include "libvmacompat/udp/udp_api.h"

#include <mutex>

namespace ringsock::vma {

std::vector<std::shared_ptr<ethernet::Ring>> UdpApi::receiving_rings() {
  const std::lock_guard guard(flows_.setup_lock());
  return flows_.attached().rings();
}

/// A destination that is new may bring answers by a new ring.
std::shared_ptr<ethernet::Ring> UdpApi::sending_ring(const SocketAddress& destination) {
  const PolledRings::News news(rings_);
  return sender_.ring_to(destination);
}

std::vector<std::byte> UdpApi::headers_to_peer() {
  const PolledRings::News news(rings_);
  return sender_.headers_to_peer();
}

}  // namespace ringsock::vma
