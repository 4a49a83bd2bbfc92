// What libvma logs at its start.
#pragma once

#include <string>
#include <vector>

#include "core/config/vma_config.h"

namespace ringsock::config {

/// A line for the log.
struct VmaLogText {
  VmaLogLevel level;
  std::string text;
};

/// Empty ones are left out.
struct VmaBannerFacts {
  std::string version;       ///< "9.8.84-1 Release built on ..."
  std::string git;           ///< a commit
  std::string command_line;  ///< of the program
  std::string ofed_version;
  std::string current_time;
  std::string pid;
  std::string architecture;
  std::string node;  ///< uname(2)
};
/// Between two rules: version and command line at info, the rest at debug.
std::vector<VmaLogText> vma_banner(const VmaBannerFacts& facts);

/// A line per variable, "title value [VARIABLE]", and a rule. What is the default stands at details, the rest at info,
/// and so does always the log level.
std::vector<VmaLogText> vma_parameter_lines(const VmaConfig& config);

}  // namespace ringsock::config
