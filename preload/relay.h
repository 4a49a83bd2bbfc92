// A process between a ring and a kernel socket.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ringsock::preload {

/// One connection: the descriptor of ours, and a kernel socket whose other end stands for it in another program.
struct RelayedConnection {
  int ring;
  int kernel;
  bool at_once;  ///< although others have the connection open; else when they have closed it
  int theirs;    ///< the other end of `kernel`; in the relay's process for those who may still ask for it, or -1
  pid_t maker;   ///< the process that is about to be the program, of one that does not begin at once
  bool nobody_asks = false;  ///< `theirs` is to be the application's alone: it tells of its end by signals
};

/// Moves bytes, ends and resets between them until all have ended. In a process of its own, which has only these
/// descriptors and one thread.
void relay(const std::vector<RelayedConnection>& connections);

}  // namespace ringsock::preload
