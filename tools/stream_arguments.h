// The command line of rstream and riostream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tools/resolve.h"

namespace ringsock::tools {

struct StreamOptions {
  std::string server;     ///< empty: this is the server
  std::string bind_node;  ///< empty: any
  std::string port = "7471";
  AddressFormat format = AddressFormat::name;
  int buffer_bytes = 1 << 19;
  int inline_bytes = 64;
  std::uint32_t keepalive_s = 0;
  bool custom = false;     ///< one test instead of the series
  bool all_sizes = false;  ///< the long series
  std::uint32_t iterations = 1;
  std::uint32_t transfers = 1000;
  std::uint32_t transfer_bytes = 1000;
  bool kernel = false;
  bool async = false;
  bool blocking = false;
  bool fork = false;
  bool resolve = false;
  bool verify = false;

  [[nodiscard]] bool is_client() const { return !server.empty(); }
};

/// The options that a tool accepts.
struct StreamTool {
  const char* name;
  const char* short_options;  ///< for getopt_long(3)
  std::string_view tests;     ///< the letters of -T
};

inline constexpr StreamTool kRstream{"rstream", "s:b:f:B:i:I:C:S:p:k:T:h", "sabfnrv"};
inline constexpr StreamTool kRiostream{"riostream", "s:b:f:B:i:I:C:S:p:T:h", "abnv"};

/// The options, or the exit status after --help and after a mistake, which has been reported on stderr.
struct ParsedOptions {
  std::optional<StreamOptions> options;
  int exit_status = 0;
};
ParsedOptions parse_stream_options(const StreamTool& tool, int argc, char** argv);

}  // namespace ringsock::tools
