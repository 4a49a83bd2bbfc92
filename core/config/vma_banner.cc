#include "core/config/vma_banner.h"

#include <algorithm>
#include <cstring>

#include "core/config/vma_option_table.h"

namespace ringsock::config {

namespace {

VmaLogText rule() { return {VmaLogLevel::info, std::string(75, '-')}; }

/// What the listing adds to the value of a variable that does not act, or not everywhere.
std::string remark_of(const VmaOptionRow& row, bool has_tcp) {
  switch (row.effect) {
    case VmaEffect::yes: break;
    case VmaEffect::cards: return " (network cards)";
    case VmaEffect::always: return std::string(" (always ") + row.always + ")";
    case VmaEffect::tcp:
      if (has_tcp) break;
      [[fallthrough]];
    case VmaEffect::no: return " (without effect)";
  }
  return "";
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

}  // namespace

std::vector<VmaLogText> vma_banner(const VmaBannerFacts& facts) {
  std::vector<VmaLogText> out{rule()};
  const auto line = [&](VmaLogLevel level, const char* label, const std::string& value) {
    if (!value.empty()) out.push_back({level, label + value});
  };
  line(VmaLogLevel::info, "VMA_VERSION: ", facts.version);
  line(VmaLogLevel::info, "Git: ", facts.git);
  line(VmaLogLevel::info, "Cmd Line: ", facts.command_line);
  line(VmaLogLevel::info, "OFED Version: ", facts.ofed_version);
  line(VmaLogLevel::debug, "Current Time: ", facts.current_time);
  line(VmaLogLevel::debug, "Pid: ", facts.pid);
  line(VmaLogLevel::debug, "Architecture: ", facts.architecture);
  line(VmaLogLevel::debug, "Node: ", facts.node);
  out.push_back(rule());
  return out;
}

std::vector<VmaLogText> vma_parameter_lines(const VmaConfig& config, VmaLogLevel shown) {
  constexpr std::size_t kTitleWidth = 30, kValueWidth = 26;
  const VmaConfig defaults;
  const bool has_tcp = config.tcp_rings != 0;
  std::vector<VmaLogText> out;
  for (const VmaOptionRow& row : vma_option_rows()) {
    std::string value = row.value(config);
    const bool is_active =
        row.effect == VmaEffect::yes || row.effect == VmaEffect::cards || (row.effect == VmaEffect::tcp && has_tcp);
    const bool stands_out =
        (is_active && value != row.value(defaults)) || std::strcmp(row.variable, "VMA_TRACELEVEL") == 0;
    const VmaLogLevel level = stands_out ? VmaLogLevel::info : VmaLogLevel::details;
    if (level > shown) continue;
    // File names come from outside and may contain newlines.
    std::ranges::replace_if(
        value, [](char c) { return c >= 0 && c < ' '; }, '?');
    out.push_back({level, padded(row.title, kTitleWidth) + " " + padded(value + remark_of(row, has_tcp), kValueWidth) +
                              " [" + row.variable + "]"});
  }
  out.push_back(rule());
  return out;
}

}  // namespace ringsock::config
