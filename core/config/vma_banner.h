// The lines that libvma logs at its start.
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

/// The facts of the banner. Empty facts are left out.
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
/// Returns the banner between two horizontal rules: version and command line at level info, the rest at debug.
std::vector<VmaLogText> vma_banner(const VmaBannerFacts& facts);

/// Returns a line per variable, "title value [VARIABLE]", and a horizontal rule. Defaults are at level details, other
/// values and the log level always at info. Lines above the level `shown` are left out.
std::vector<VmaLogText> vma_parameter_lines(const VmaConfig& config, VmaLogLevel shown = VmaLogLevel::details);

}  // namespace ringsock::config
