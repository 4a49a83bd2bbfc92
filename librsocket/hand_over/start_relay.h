// Making the relay's process.
#pragma once

#include <vector>

#include "core/base/result.h"
#include "librsocket/hand_over/relay.h"

namespace ringsock::rs {

/// Starts the relay as a grandchild: the application neither waits for it nor gets its SIGCHLD. Error EBUSY: another
/// thread has closed one of the connections. Other errors: those of pipe(2) and fork(2).
/// @param program  tells which process gets the connections that wait (HandOvers::hand_over()); -1: this process
Status start_relay(const std::vector<RelayedConnection>& connections, int program = -1);

}  // namespace ringsock::rs
