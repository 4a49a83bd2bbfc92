// The receiving side of rcopy.
#pragma once

#include <string>

#include "core/base/result.h"
#include "tools/call_table.h"

namespace ringsock::tools {

/// Serves clients one after the other, for ever. A client that violates the protocol or becomes silent is disconnected,
/// and its file is discarded. Returns only when the listener fails.
Error serve_copies(const SocketCalls& calls, const std::string& port);

}  // namespace ringsock::tools
