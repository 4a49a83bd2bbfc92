// The groups that a UDP socket hears: multicast and broadcast.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "core/device/packet/steering/copy_filter.h"
#include "core/net/mac_address.h"
#include "core/net/network_state.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/memberships.h"

namespace ringsock::vma {

/// The kernel's socket is the member of groups; a filter makes it refuse its copies of datagrams that rings receive.
/// Locks: all functions are called with the socket's setup lock held.
class Groups {
 public:
  explicit Groups(KernelSocket& kernel) : kernel_(kernel) {}

  /// Asks the kernel for the membership again, after a socket option has changed it.
  void learn(const net::IpAddress& group, const net::NetworkState& network);
  [[nodiscard]] const std::vector<Membership>& memberships() const { return memberships_; }
  /// SO_BROADCAST was set or cleared.
  void learn_broadcast();

  /// Sets the interface to send to groups by. `network` may be null.
  void set_interface(int family, MulticastInterface interface, const net::NetworkState* network);
  [[nodiscard]] const MulticastInterface& interface(int family) const { return interfaces_[family == AF_INET ? 0 : 1]; }

  /// A destination of datagrams to many, on one interface.
  struct Heard {
    net::IpAddress group;
    int ifindex = 0;
    net::MacAddress mac;
  };
  [[nodiscard]] std::vector<Heard> heard(const net::NetworkState& network) const;

  /// Has the kernel's socket refuse the copies of these flows, and of no others. Errors: those of setsockopt(2).
  Status refuse_copies(std::vector<soft::CopiedFlow> flows);
  /// Called in a forked child.
  void forget_refused() { refused_.clear(); }

 private:
  KernelSocket& kernel_;
  std::vector<Membership> memberships_;
  std::array<MulticastInterface, 2> interfaces_;  ///< for IPv4 and IPv6
  std::vector<soft::CopiedFlow> refused_;
  bool hears_broadcast_ = false;
};

}  // namespace ringsock::vma
