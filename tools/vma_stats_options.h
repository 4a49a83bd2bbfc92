// What vma_stats was called for.
#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "core/base/result.h"
#include "core/runtime/vma_page_reader.h"
#include "core/runtime/vma_views.h"

namespace ringsock::tools {

enum class VmaView { basic = 1, extra, full, groups, netstat };

struct VmaStatsOptions {
  std::optional<int> pid{};
  std::string program{};
  std::string directory{};
  bool clean = true;  ///< removes what dead processes left
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  unsigned cycles = 0;  ///< 0: until it is stopped
  VmaView view = VmaView::basic;
  runtime::VmaCounting counting = runtime::VmaCounting::totals;
  bool zero = false;
  std::optional<std::set<int>> sockets{};  ///< absent: all
  runtime::VmaRequest request{};           ///< what the process is to do
  bool help = false, version = false;

  /// Whether the process is to do something, after which nothing is shown.
  [[nodiscard]] bool changes_process() const {
    return zero || request.log_level || request.log_details || request.dump_fd;
  }
};

/// @param default_directory  where -k is not given
/// Errors, in words: what is wrong with which option. An empty text: getopt_long(3) has said it.
struct VmaStatsParsed {
  std::optional<VmaStatsOptions> options{};
  std::string problem{};
};
VmaStatsParsed parse_vma_stats_options(int argc, char** argv, const std::string& default_directory);

/// "4", "1,9", "4-16,20": descriptors. Nothing when it is none, or too many.
std::optional<std::set<int>> parse_descriptors(const std::string& text);

void print_vma_stats_usage(std::FILE* out);

}  // namespace ringsock::tools
