// A process between a ring and a kernel socket.
#pragma once

#include <sys/types.h>

#include <vector>

#include "core/base/unique_fd.h"

namespace ringsock::rs {

/// One connection: a descriptor on a ring, and a kernel socket whose other end stands for the connection in another
/// program.
struct RelayedConnection {
  int ring;
  int kernel;
  bool at_once;  ///< whether to start although others have the connection open, not only once they have closed it
  int theirs;    ///< the other end of `kernel`; the relay keeps it for processes that may still ask; -1: none
  pid_t maker;   ///< the process that is about to execute the program; for a connection without `at_once`
  bool nobody_asks = false;  ///< only the application has `theirs`, so that its end raises a signal there
};

/// Moves bytes, ends and resets between the two sides until all connections have ended, or SIGTERM has come and nothing
/// has been on its way for a second. Runs in a process of its own, which has only these descriptors and one thread, and
/// blocks all signals. Writes a byte to `begun` once it has moved what was there at the start.
void relay(const std::vector<RelayedConnection>& connections, UniqueFd begun);

}  // namespace ringsock::rs
