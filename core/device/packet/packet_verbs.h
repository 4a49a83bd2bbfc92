// The verbs of a packet device, as <infiniband/verbs.h> calls them.
#pragma once

#include <infiniband/verbs.h>

namespace ringsock::soft {

void enter_packet_verbs(verbs_context& operations);

}  // namespace ringsock::soft
