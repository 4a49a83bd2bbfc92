// The options about sending of a kernel's UDP socket.
#pragma once

#include "core/ethernet/send_options.h"
#include "libvmacompat/memberships.h"

namespace ringsock::vma {

/// For destinations of `family`. @param multicast  what the socket was told by IP_MULTICAST_IF or IPV6_MULTICAST_IF
ethernet::SendOptions send_options_of(int fd, int family, const MulticastInterface& multicast);

}  // namespace ringsock::vma
