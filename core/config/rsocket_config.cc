#include "core/config/rsocket_config.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/config/option_file.h"

namespace ringsock::config {

namespace {

/// The directory and the report that all rows of options.def use while their files are read.
struct Source {
  int directory_fd;
  std::string directory;
  const Report& report;

  [[nodiscard]] std::string path(const char* name) const { return directory + "/" + name; }
  void reject(const std::string& where, const std::string& why, const std::string& default_used) const {
    report(where + ": " + why + "; using the default " + default_used);
  }
  /// Returns the value in the option's file, nullopt when there is none to use. A file that is wrong has been reported
  /// then.
  [[nodiscard]] std::optional<std::string> value(const char* name, const std::string& default_used) const {
    auto text = read_option_file(directory_fd, name);
    if (!text) {
      reject(path(name), "cannot be read (" + std::string(std::strerror(text.error().code)) + ")", default_used);
      return std::nullopt;
    }
    if (!*text) return std::nullopt;
    return option_value(**text);
  }
};

template <class T>
struct NumberRow {
  const char* name;
  T default_value;
  std::int64_t minimum;
  std::int64_t maximum;
};

template <class T>
std::string describe(NumberProblem problem, std::string_view value, const NumberRow<T>& row) {
  switch (problem) {
    case NumberProblem::empty: return "is empty";
    case NumberProblem::not_a_number: return printable(value) + " is not a number";
    case NumberProblem::trailing_text: return printable(value) + " has something after the number";
    case NumberProblem::out_of_range:
      return printable(value) + " is not within " + std::to_string(row.minimum) + ".." + std::to_string(row.maximum);
    case NumberProblem::none: break;
  }
  return "";
}

template <class T>
T load_number(const Source& source, const NumberRow<T>& row) {
  static_assert(std::numeric_limits<T>::digits < std::numeric_limits<std::int64_t>::digits);
  const std::string default_used = std::to_string(row.default_value);
  const auto value = source.value(row.name, default_used);
  if (!value) return row.default_value;
  const ParsedNumber number = parse_number(*value, row.minimum, row.maximum);
  if (number.problem == NumberProblem::none) return static_cast<T>(number.value);
  source.reject(source.path(row.name), describe(number.problem, *value, row), default_used);
  return row.default_value;
}

struct ChoiceRow {
  const char* name;
  DeviceChoice default_value;
  const char* words;
};

constexpr std::array<std::pair<const char*, DeviceChoice>, 4> kDeviceWords{{
    {"auto", DeviceChoice::automatic},
    {"rdma", DeviceChoice::rdma},
    {"soft", DeviceChoice::soft},
    {"none", DeviceChoice::none},
}};

std::optional<DeviceChoice> parse_device(std::string_view value) {
  for (const auto& [word, choice] : kDeviceWords) {
    if (word == value) return choice;
  }
  return std::nullopt;
}

DeviceChoice load_choice(const Source& source, const ChoiceRow& row) {
  const std::string default_used = to_string(row.default_value);
  const auto value = source.value(row.name, default_used);
  if (!value) return row.default_value;
  if (const auto choice = parse_device(*value)) return *choice;
  source.reject(source.path(row.name), value->empty() ? "is empty" : printable(*value) + " is not one of " + row.words,
                default_used);
  return row.default_value;
}

/// Opens the directory. Returns an empty descriptor when there is none, or when it cannot be used, which is reported.
UniqueFd open_directory(const char* directory, const Report& report) {
  const auto unusable = [&](int error) {
    report(std::string(directory) + ": cannot be read (" + std::strerror(error) + "); using the defaults");
    return UniqueFd();
  };
  UniqueFd fd(::open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return errno == ENOENT ? UniqueFd() : unusable(errno);
  if (::faccessat(fd.get(), ".", X_OK, AT_EACCESS) != 0) return unusable(errno);
  return fd;
}

/// The receive buffer is used in two halves; upstream lets an odd size lose a byte.
std::uint32_t even(std::uint32_t bytes) { return bytes + bytes % 2; }

/// Returns the largest size up to `entries` that a connect request can express (fact sheet 2.2): exact up to 128, then
/// multiples of 256.
std::uint16_t expressible_iomap_size(std::uint16_t entries) {
  if (entries <= 128) return entries;
  return static_cast<std::uint16_t>(entries < 256 ? 128 : entries & ~255);
}

RsocketConfig load_files(const Source& source) {
  RsocketConfig out;
#define RSOCKET_NUMBER(name, type, default_value, minimum, maximum, ...) \
  out.name = load_number(source, NumberRow<type>{#name, default_value, minimum, maximum});
#define RSOCKET_CHOICE(name, type, default_value, words, ...) \
  out.name = load_choice(source, ChoiceRow{#name, type::default_value, words});
#include "core/config/options.def"
  return out;
}

void override_device(RsocketConfig& out, const RsocketOverrides& overrides, const Report& report) {
  if (overrides.device == nullptr) return;
  if (const auto choice = parse_device(overrides.device)) {
    out.device = *choice;
  } else {
    report(std::string(overrides.device_name) + ": " + printable(overrides.device) +
           " is not one of auto|rdma|soft|none; using " + to_string(out.device));
  }
}

void override_polling_time(RsocketConfig& out, const RsocketOverrides& overrides, const Report& report) {
  if (overrides.polling_time == nullptr) return;
  const NumberRow<std::uint32_t> row{"polling_time", out.polling_time, 0, UINT32_MAX};
  const ParsedNumber number = parse_number(overrides.polling_time, row.minimum, row.maximum);
  if (number.problem == NumberProblem::none) {
    out.polling_time = static_cast<std::uint32_t>(number.value);
  } else {
    report(std::string(overrides.polling_time_name) + ": " + describe(number.problem, overrides.polling_time, row) +
           "; using " + std::to_string(out.polling_time));
  }
}

}  // namespace

const char* to_string(DeviceChoice wanted) {
  for (const auto& [word, choice] : kDeviceWords) {
    if (choice == wanted) return word;
  }
  return "";
}

RsocketOverrides environment_overrides() {
  constexpr const char* kDevice = "RINGSOCK_DEVICE";
  constexpr const char* kPollingTime = "RINGSOCK_POLLING_TIME";
  return {.device = ::secure_getenv(kDevice),
          .device_name = kDevice,
          .polling_time = ::secure_getenv(kPollingTime),
          .polling_time_name = kPollingTime};
}

void report_as_warning(const std::string& line) { log_warn("%s", line.c_str()); }

RsocketConfig load_rsocket_config(const char* directory, const RsocketOverrides& overrides, const Report& report) {
  RsocketConfig out;
  if (const UniqueFd fd = open_directory(directory, report)) out = load_files(Source{fd.get(), directory, report});
  out.mem_default = even(out.mem_default);
  out.iomap_size = expressible_iomap_size(out.iomap_size);
  override_device(out, overrides, report);
  override_polling_time(out, overrides, report);
  return out;
}

}  // namespace ringsock::config
