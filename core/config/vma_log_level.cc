#include "core/config/vma_log_level.h"

#include <strings.h>

#include <array>

namespace ringsock::config {

namespace {

struct Name {
  std::string_view text;
  VmaLogLevel level;
};
constexpr std::array kNames{
    Name{"none", VmaLogLevel::none},        Name{"panic", VmaLogLevel::panic},   Name{"0", VmaLogLevel::panic},
    Name{"error", VmaLogLevel::error},      Name{"1", VmaLogLevel::error},       Name{"warn", VmaLogLevel::warning},
    Name{"warning", VmaLogLevel::warning},  Name{"2", VmaLogLevel::warning},     Name{"info", VmaLogLevel::info},
    Name{"information", VmaLogLevel::info}, Name{"3", VmaLogLevel::info},        Name{"details", VmaLogLevel::details},
    Name{"debug", VmaLogLevel::debug},      Name{"4", VmaLogLevel::debug},       Name{"fine", VmaLogLevel::fine},
    Name{"func", VmaLogLevel::fine},        Name{"5", VmaLogLevel::fine},        Name{"finer", VmaLogLevel::finer},
    Name{"func+", VmaLogLevel::finer},      Name{"funcall", VmaLogLevel::finer}, Name{"func_all", VmaLogLevel::finer},
    Name{"func-all", VmaLogLevel::finer},   Name{"6", VmaLogLevel::finer},       Name{"all", VmaLogLevel::all},
};

}  // namespace

std::optional<VmaLogLevel> parse_vma_log_level(std::string_view text) {
  for (const Name& name : kNames) {
    if (name.text.size() == text.size() && ::strncasecmp(name.text.data(), text.data(), text.size()) == 0)
      return name.level;
  }
  return std::nullopt;
}

const char* name_of(VmaLogLevel level) {
  switch (level) {
    case VmaLogLevel::none: return "NONE";
    case VmaLogLevel::panic: return "PANIC";
    case VmaLogLevel::error: return "ERROR";
    case VmaLogLevel::warning: return "WARNING";
    case VmaLogLevel::info: return "INFO";
    case VmaLogLevel::details: return "DETAILS";
    case VmaLogLevel::debug: return "DEBUG";
    case VmaLogLevel::fine: return "FINE";
    case VmaLogLevel::finer: return "FINER";
    case VmaLogLevel::all: return "ALL";
  }
  return "";
}

}  // namespace ringsock::config
