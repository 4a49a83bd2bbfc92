// The functions of a packet device that <infiniband/verbs.h> calls.
#pragma once

#include <infiniband/verbs.h>

namespace ringsock::soft {

void enter_packet_verbs(verbs_context& operations);

}  // namespace ringsock::soft
