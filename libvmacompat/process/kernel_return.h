// Returns packets that a ring has received to the kernel's sockets.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/arrival.h"

namespace ringsock::vma {

/// Sends packets to this host itself, with the original sender's address. The kernel delivers them to the socket that
/// they are for, as if they had come from the loopback interface. Threads: one at a time.
class KernelReturn {
 public:
  /// `arrival` must be for an address of this host and not for a group: a packet to a group would leave the host.
  /// Returns false when raw sockets are not permitted, or the kernel refuses the packet.
  bool give(const ethernet::Arrival& arrival);
  /// Sends the IP packet of a frame, from its Ethernet header on, whose checksums are filled in. `to` is its
  /// destination, an address of this host. Returns false as the other give() does.
  bool give(std::span<std::byte> frame, const SocketAddress& to);

 private:
  bool send(int family, std::span<std::byte> frame, std::size_t ip_at, SocketAddress to);
  int raw_socket(int family);
  UniqueFd v4_;
  UniqueFd v6_;
};

}  // namespace ringsock::vma
