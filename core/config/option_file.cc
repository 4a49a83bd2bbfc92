#include "core/config/option_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/base/unique_fd.h"

namespace ringsock::config {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::string option_value(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    kept.append(line.substr(0, line.find('#'))).append("\n");
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::string(trimmed(kept));
}

Result<std::optional<std::string>> read_option_file(int directory_fd, const char* name, std::size_t max_bytes) {
  // Non-blocking, so that a FIFO in this place does not block the program.
  const UniqueFd file(::openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) {
    if (errno == ENOENT) return std::optional<std::string>{};
    return Error::last("open");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::last("fstat");
  if (!S_ISREG(status.st_mode)) return Error{EINVAL, "not a regular file"};
  std::string text;
  std::array<char, kMaxFileBytes> buffer;
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("read");
    if (count == 0) return std::optional(std::move(text));
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > max_bytes) return Error{EFBIG, "read"};
  }
}

ParsedNumber parse_number(std::string_view value, std::int64_t minimum, std::int64_t maximum) {
  if (value.empty()) return {.problem = NumberProblem::empty};
  // from_chars accepts a minus sign, but no plus sign.
  const bool plus = value.size() > 1 && value[0] == '+' && value[1] != '-';
  const char* const first = value.data() + (plus ? 1 : 0);
  const char* const last = value.data() + value.size();
  ParsedNumber out;
  const auto [end, error] = std::from_chars(first, last, out.value);
  if (error == std::errc::invalid_argument) return {.problem = NumberProblem::not_a_number};
  if (end != last) return {.problem = NumberProblem::trailing_text};
  if (error == std::errc::result_out_of_range || out.value < minimum || out.value > maximum) {
    return {.problem = NumberProblem::out_of_range};
  }
  return out;
}

std::string printable(std::string_view value) {
  constexpr std::size_t kMaxShown = 40;
  std::string out = "\"";
  for (const char c : value.substr(0, kMaxShown)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (value.size() > kMaxShown ? "...\"" : "\"");
}

}  // namespace ringsock::config
