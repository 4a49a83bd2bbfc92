// The receiving side of rcopy.
#pragma once

#include <string>

#include "core/base/result.h"
#include "tools/socket_calls.h"

namespace ringsock::tools {

/// Serves clients one after the other, for ever. A client that breaks the protocol or falls silent loses its connection
/// and its file. Returns only when the listener fails.
Error serve_copies(const SocketCalls& calls, const std::string& port);

}  // namespace ringsock::tools
