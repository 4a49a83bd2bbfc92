// VMA's log levels.
#pragma once

#include <optional>
#include <string_view>

namespace ringsock::config {

/// The numbers are part of VMA's interface: dump_fd_stats() and the log callback use them.
enum class VmaLogLevel : int {
  none = -1,
  panic = 0,
  error = 1,
  warning = 2,
  info = 3,
  details = 4,
  debug = 5,
  fine = 6,
  finer = 7,
  all = 8,
};

/// Parses a value of VMA_TRACELEVEL, in upper or lower case. Its numbers are older than the levels: "4" is debug, "5"
/// fine, "6" finer.
std::optional<VmaLogLevel> parse_vma_log_level(std::string_view text);
/// Returns the name as in a log line: "WARNING".
const char* name_of(VmaLogLevel level);

}  // namespace ringsock::config
