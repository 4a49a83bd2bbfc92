// The hand-overs of streams on rings, for the calls of preload libraries.
#pragma once

#include "core/transports/hand_overs.h"

namespace ringsock::rs {

/// For transports::bring_hand_overs().
const transports::HandOvers& ring_hand_overs();

}  // namespace ringsock::rs
