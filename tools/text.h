// Numbers as the tools print and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringsock::tools {

/// "64", "1.5k", "12m": powers of 1024, cut, one decimal below ten.
std::string size_text(std::uint64_t bytes);
/// "512", "10k", "2m", "1b": powers of 1000, cut.
std::string count_text(std::uint64_t count);

/// A decimal number within the bounds and nothing else.
std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t minimum, std::uint64_t maximum);

/// Whether an argument such as "v" or "Verify" means `word`: its first letter, or the beginning of the word or more.
bool means(std::string_view argument, std::string_view word);

}  // namespace ringsock::tools
