// The multicast groups that a kernel socket is a member of, and the senders that it accepts there.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <vector>

#include "core/net/ip_address.h"

namespace ringsock::vma {

/// A socket's membership in one group on one interface.
struct Membership {
  net::IpAddress group;
  int ifindex = 0;
  bool excludes = true;                 ///< accepts all senders but `sources`; false: only `sources`
  std::vector<net::IpAddress> sources;  ///< IP_BLOCK_SOURCE, IP_ADD_SOURCE_MEMBERSHIP and the like

  [[nodiscard]] bool wants_from(const net::IpAddress& source) const;
  [[nodiscard]] bool wants_all() const { return excludes && sources.empty(); }
};

/// The interface that IP_MULTICAST_IF or IPV6_MULTICAST_IF has set.
struct MulticastInterface {
  int ifindex = 0;         ///< 0: not set, or named by its address
  net::IpAddress address;  ///< IPv4 only: names the interface, is also the source address; unspecified: not set
};
/// Returns nothing for any other option.
std::optional<MulticastInterface> multicast_interface_of_option(int level, int name, const void* value,
                                                                socklen_t length);

/// Returns the group that a socket option concerns: the options of ip(7) and ipv6(7) that join, leave, or filter
/// sources. Returns nothing for any other option.
std::optional<net::IpAddress> group_of_option(int level, int name, const void* value, socklen_t length);

/// Asks the kernel for the membership of socket `fd` in a group on one interface. Returns nothing when it is not a
/// member.
std::optional<Membership> membership_of(int fd, const net::IpAddress& group, int ifindex);

}  // namespace ringsock::vma
