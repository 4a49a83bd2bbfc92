#include "tools/text.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>

namespace ringsock::tools {

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"", "k", "m", "g"};
  std::uint64_t unit = 1;
  std::size_t name = 0;
  while (name + 1 < kUnits.size() && bytes >= unit * 1024) {
    unit *= 1024;
    ++name;
  }
  const std::uint64_t whole = bytes / unit;
  const std::uint64_t tenth = bytes % unit * 10 / unit;
  std::string text = std::to_string(whole);
  if (whole < 10 && tenth != 0) text += "." + std::to_string(tenth);
  return text + kUnits[name];
}

std::string count_text(std::uint64_t count) {
  constexpr std::array<const char*, 4> kUnits{"", "k", "m", "b"};
  std::size_t name = 0;
  for (; name + 1 < kUnits.size() && count >= 1000; ++name) count /= 1000;
  return std::to_string(count) + kUnits[name];
}

std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t minimum, std::uint64_t maximum) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last || value < minimum || value > maximum) return std::nullopt;
  return value;
}

bool means(std::string_view argument, std::string_view word) {
  if (argument.empty() || argument.size() > word.size()) return false;
  for (std::size_t i = 0; i < argument.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(argument[i])) != word[i]) return false;
  }
  return true;
}

}  // namespace ringsock::tools
