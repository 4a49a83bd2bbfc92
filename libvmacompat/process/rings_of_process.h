// The Ethernet rings of a process with libvma: their settings from VMA's configuration, their counters in the
// statistics page, and the sockets that are told about changes.
#pragma once

#include "core/ethernet/ethernet_user.h"

namespace ringsock::vma {

ethernet::EthernetUser& rings_of_process();

}  // namespace ringsock::vma
