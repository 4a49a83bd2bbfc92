// Connections that the application closed while bytes were under way.
#pragma once

#include "core/base/clock.h"
#include "core/runtime/endpoint.h"

namespace ringsock::rs {

/// Keeps the closed `socket` until the device has carried out all requests, or a minute has passed, so that close(2)
/// neither waits nor loses bytes. It first waits the few microseconds that this usually takes. Then the service thread
/// checks the socket, or later calls do where there is none. A process that exits meanwhile waits a second or two.
/// Threads: any; without locks of the socket.
void finish_in_background(runtime::Endpoint& socket);

}  // namespace ringsock::rs
