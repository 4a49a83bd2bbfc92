// The settings of the rsockets library and the files they come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ringsock::config {

/// Which devices may be used.
enum class DeviceChoice { automatic, rdma, soft, none };
/// Returns the word of the option's file: "auto", "rdma", "soft", "none".
const char* to_string(DeviceChoice choice);

/// One member per option of options.def, with its default.
struct RsocketConfig {
#define RSOCKET_NUMBER(name, type, default_value, ...) type name = default_value;
#define RSOCKET_CHOICE(name, type, default_value, ...) type name = type::default_value;
#include "core/config/options.def"
};

/// Settings that take precedence over the files, as text. Null: not set.
struct RsocketOverrides {
  const char* device = nullptr;        ///< auto, rdma, soft or none
  const char* device_name = "device";  ///< what the override is called in a report, e.g. "RINGSOCK_DEVICE"
  const char* polling_time = nullptr;  ///< microseconds
  const char* polling_time_name = "polling_time";
};

/// Returns the overrides of this process: RINGSOCK_DEVICE and RINGSOCK_POLLING_TIME. The strings live as long as the
/// environment. A set-uid program has none.
RsocketOverrides environment_overrides();

/// Receives one line per setting that could not be used: file, value, reason, and the default used instead.
using Report = std::function<void(const std::string& line)>;
/// A Report that logs warnings.
void report_as_warning(const std::string& line);

/// Reads `directory`/<option> for every option. A file holds one integer (or word); '#' starts a comment that goes to
/// the end of the line, blanks around the value do not matter. A missing file is not reported. A file that cannot be
/// read, is empty, is not a number, has further text or is out of range is reported in one line, and the default is
/// used. An unusable directory is reported once. Threads: any. Never fails; may throw std::bad_alloc.
RsocketConfig load_rsocket_config(const char* directory, const RsocketOverrides& overrides, const Report& report);

}  // namespace ringsock::config
