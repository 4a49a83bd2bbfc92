// The options of a kernel UDP socket that concern sending.
#pragma once

#include "core/ethernet/send_options.h"
#include "libvmacompat/udp/memberships.h"

namespace ringsock::vma {

/// Returns the options for destinations of `family`.
/// @param multicast  the interface set by IP_MULTICAST_IF or IPV6_MULTICAST_IF
ethernet::SendOptions send_options_of(int fd, int family, const MulticastInterface& multicast);

}  // namespace ringsock::vma
