// packetdrill's table around the kernel's own TCP and a TUN device: what Linux does with a script, in real time.
#pragma once

#include <string>

#include "tests/packetdrill/interface.h"

namespace ringsock::packetdrill {

/// Makes a network namespace with a TUN device for this process and fills the table. `free` ends the device. Returns
/// what failed; empty: nothing. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
std::string make_kernel_table(packetdrill_interface& table);

}  // namespace ringsock::packetdrill
