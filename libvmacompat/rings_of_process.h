// The Ethernet rings of a process with libvma: VMA's configuration for them, counters in its page, sockets that hear.
#pragma once

#include "core/ethernet/ethernet_user.h"

namespace ringsock::vma {

/// The process's own.
ethernet::EthernetUser& rings_of_process();

}  // namespace ringsock::vma
