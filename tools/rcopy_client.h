// The sending side of rcopy.
#pragma once

#include <string>

#include "core/base/result.h"
#include "tools/socket_calls.h"

namespace ringsock::tools {

struct RcopyJob {
  std::string source;
  std::string server;
  std::string destination;  ///< on the server
  std::string port;
};

/// Copies one file, telling about the progress on stdout. Errors: an errno value; the server's own come back as it sent
/// them.
Status copy_to_server(const SocketCalls& calls, const RcopyJob& job);

}  // namespace ringsock::tools
