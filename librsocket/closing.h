// Connections that the application has closed while bytes were under way.
#pragma once

#include "core/base/clock.h"
#include "core/runtime/endpoint.h"

namespace ringsock::rs {

/// close(2) does not wait, and loses nothing: keeps `socket`, which is closed, until the device has carried out
/// everything, or a minute has passed. Usually that is known after a few microseconds, for which it waits; then the
/// service thread looks after it, or later calls where there is none, and a process that exits meanwhile waits a second
/// or two.
/// Threads: any; without locks of the socket.
void finish_in_background(runtime::Endpoint& socket);

}  // namespace ringsock::rs
