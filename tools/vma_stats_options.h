// The options of vma_stats.
#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "core/base/result.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "libvmacompat/statistics/vma_views.h"

namespace ringsock::tools {

enum class VmaView { basic = 1, extra, full, groups, netstat };

struct VmaStatsOptions {
  std::optional<int> pid{};
  std::string program{};
  std::string directory{};
  bool clean = true;  ///< remove pages of dead processes
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  unsigned cycles = 0;  ///< 0: without end
  VmaView view = VmaView::basic;
  runtime::VmaCounting counting = runtime::VmaCounting::totals;
  bool zero = false;
  std::optional<std::set<int>> sockets{};  ///< absent: all
  runtime::VmaRequest request{};           ///< the request to the process
  bool help = false, version = false;

  /// Returns whether there is a request to the process, after which nothing is shown.
  [[nodiscard]] bool changes_process() const {
    return zero || request.log_level || request.log_details || request.dump_fd || request.trace_fd;
  }
};

/// @param default_directory used without -k
/// Errors are texts about the wrong option, empty when getopt_long(3) has printed one.
struct VmaStatsParsed {
  std::optional<VmaStatsOptions> options{};
  std::string problem{};
};
VmaStatsParsed parse_vma_stats_options(int argc, char** argv, const std::string& default_directory);

/// Parses descriptors: "4", "1,9", "4-16,20". Returns nothing when they are invalid or too many.
std::optional<std::set<int>> parse_descriptors(const std::string& text);

void print_vma_stats_usage(std::FILE* out);

}  // namespace ringsock::tools
