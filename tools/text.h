// Formats and parses numbers for the tools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringsock::tools {

/// Returns for example "64", "1.5k", "12m": powers of 1024, truncated, with one decimal below ten.
std::string size_text(std::uint64_t bytes);
/// Returns for example "512", "10k", "2m", "1b": powers of 1000, truncated.
std::string count_text(std::uint64_t count);

/// Parses a decimal number within the bounds; no other text may follow.
std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t minimum, std::uint64_t maximum);

/// Parses the number into `out`. Returns whether it is one within the bounds.
template <class T>
bool set_number(T& out, std::string_view text, std::uint64_t minimum, std::uint64_t maximum) {
  const auto value = parse_number(text, minimum, maximum);
  if (value) out = static_cast<T>(*value);
  return value.has_value();
}

/// Returns whether an argument such as "v" or "Verify" stands for `word`.
bool means(std::string_view argument, std::string_view word);

}  // namespace ringsock::tools
