// Making the relay's process.
#pragma once

#include <vector>

#include "core/base/result.h"
#include "librsocket/hand_over/relay.h"

namespace ringsock::rs {

/// Starts the relay as a grandchild: the application neither waits for it nor gets its SIGCHLD. Error EBUSY: another
/// thread has closed one of the connections. Other errors: those of pipe(2) and fork(2).
Status start_relay(const std::vector<RelayedConnection>& connections);

}  // namespace ringsock::rs
