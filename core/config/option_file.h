// Reading one small configuration file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace ringsock::config {

/// Files longer than this are not configuration.
inline constexpr std::size_t kMaxFileBytes = 4096;

/// Returns the value in the text of an option file, without comments and surrounding blanks. It may be empty, and has
/// several words or lines when the file is wrong.
std::string option_value(std::string_view text);

/// Reads `name` in the directory `directory_fd`. Returns nullopt when there is no such file.
/// Errors: those of open(2) and read(2); EINVAL when it is no regular file; EFBIG above `max_bytes`.
Result<std::optional<std::string>> read_option_file(int directory_fd, const char* name,
                                                    std::size_t max_bytes = kMaxFileBytes);

enum class NumberProblem { none, empty, not_a_number, trailing_text, out_of_range };
struct ParsedNumber {
  std::int64_t value = 0;
  NumberProblem problem = NumberProblem::none;
};
/// Parses a decimal integer within [minimum, maximum], with an optional sign.
ParsedNumber parse_number(std::string_view value, std::int64_t minimum, std::int64_t maximum);

/// Returns `value` for a message: in quotes, at most 40 characters, unprintable characters as '?'.
std::string printable(std::string_view value);

}  // namespace ringsock::config
