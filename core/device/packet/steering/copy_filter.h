// A filter for a kernel socket that also receives multicast or broadcast by a ring: it refuses the kernel's copies.
#pragma once

#include <span>

#include "core/base/result.h"
#include "core/net/ip_address.h"

namespace ringsock::soft {

/// Packets for a multicast or broadcast address that come in by an interface.
struct CopiedFlow {
  int ifindex = 0;
  net::IpAddress address;  ///< IPv4 or IPv6
  bool operator==(const CopiedFlow&) const = default;
};

/// Has UDP socket `fd` refuse packets of these flows that a ring of this host has taken. Packets that no ring can take
/// (for example those that this host sends to itself) are received as before. Replaces any other socket filter. Errors:
/// EPERM (also: the socket's filter is locked), ENOMEM, E2BIG too many flows.
Status refuse_copies(int fd, std::span<const CopiedFlow> flows);
/// Has the socket accept all packets again. Does nothing without a filter. Errors: EPERM the socket's filter is locked.
Status accept_copies(int fd);

}  // namespace ringsock::soft
