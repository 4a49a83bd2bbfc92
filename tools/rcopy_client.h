// The sending side of rcopy.
#pragma once

#include <string>

#include "core/base/result.h"
#include "tools/call_table.h"

namespace ringsock::tools {

struct RcopyJob {
  std::string source;
  std::string server;
  std::string destination;  ///< on the server
  std::string port;
};

/// Copies one file and prints the progress on stdout. Errors: errno values, including those that the server sends.
Status copy_to_server(const SocketCalls& calls, const RcopyJob& job);

}  // namespace ringsock::tools
