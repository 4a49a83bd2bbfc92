// A kernel socket that has multicast or broadcast from a ring, too, refuses the kernel's copies.
#pragma once

#include <span>

#include "core/base/result.h"
#include "core/net/ip_address.h"

namespace ringsock::soft {

/// What comes in by an interface for a multicast or broadcast address.
struct CopiedFlow {
  int ifindex = 0;
  net::IpAddress address;  ///< IPv4 or IPv6
  bool operator==(const CopiedFlow&) const = default;
};

/// From now on UDP socket `fd` refuses packets of these flows that a ring of this host has taken. What no ring can take
/// (what this host sends to itself, say) comes as before. Replaces an earlier such filter, and any other socket
/// filter. Errors: EPERM (also: the socket's filter is locked), ENOMEM, E2BIG too many flows.
Status refuse_copies(int fd, std::span<const CopiedFlow> flows);
/// The socket takes everything again. Harmless without a filter. Errors: EPERM the socket's filter is locked.
Status accept_copies(int fd);

}  // namespace ringsock::soft
