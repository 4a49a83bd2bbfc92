// Which multicast groups a kernel socket is a member of, and from whom it wants what is sent there.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <vector>

#include "core/net/ip_address.h"

namespace ringsock::vma {

/// Of one socket, in one group, on one interface.
struct Membership {
  net::IpAddress group;
  int ifindex = 0;
  bool excludes = true;                 ///< wants everybody's but `sources`; else of `sources` only
  std::vector<net::IpAddress> sources;  ///< IP_BLOCK_SOURCE, IP_ADD_SOURCE_MEMBERSHIP and the like

  [[nodiscard]] bool wants_from(const net::IpAddress& source) const;
  [[nodiscard]] bool wants_all() const { return excludes && sources.empty(); }
};

/// What IP_MULTICAST_IF or IPV6_MULTICAST_IF has said.
struct MulticastInterface {
  int ifindex = 0;         ///< 0: not told, or told by its address
  net::IpAddress address;  ///< of IPv4: the source, too; unspecified: not told
};
/// Nothing: another option.
std::optional<MulticastInterface> multicast_interface_of_option(int level, int name, const void* value,
                                                                socklen_t length);

/// The group that a socket option is about: ip(7) and ipv6(7), joining, leaving, sources. Nothing: another option.
std::optional<net::IpAddress> group_of_option(int level, int name, const void* value, socklen_t length);

/// What the kernel says of socket `fd` and one group on one interface; nothing when it is no member there.
std::optional<Membership> membership_of(int fd, const net::IpAddress& group, int ifindex);

}  // namespace ringsock::vma
