// The settings of the rsockets library and the files they come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ringsock::config {

/// Which devices may be used.
enum class DeviceChoice { automatic, rdma, soft, none };
/// As in the option's file: "auto", "rdma", "soft", "none".
const char* to_string(DeviceChoice choice);

/// One member per option of options.def, with its default.
struct RsocketConfig {
#define RSOCKET_NUMBER(name, type, default_value, ...) type name = default_value;
#define RSOCKET_CHOICE(name, type, default_value, ...) type name = type::default_value;
#include "core/config/options.def"
};

/// Settings that go before the files, as text. Null: not set.
struct RsocketOverrides {
  const char* device = nullptr;        ///< auto, rdma, soft or none
  const char* device_name = "device";  ///< what the override is called in a report, e.g. "RINGSOCK_DEVICE"
  const char* polling_time = nullptr;  ///< microseconds
  const char* polling_time_name = "polling_time";
};

/// Those of this process: RINGSOCK_DEVICE and RINGSOCK_POLLING_TIME, which live as long as the environment. None in a
/// set-uid program.
RsocketOverrides environment_overrides();

/// Receives one line per setting that could not be used: file, value, reason, and the default used instead.
using Report = std::function<void(const std::string& line)>;
/// A Report that logs warnings.
void report_as_warning(const std::string& line);

/// Reads `directory`/<option> for every option. A file holds one integer (or word); '#' starts a comment that goes to
/// the end of the line, blanks around the value do not matter. A file that is missing is no news. One that cannot be
/// read, is empty, not a number, followed by something else or out of range is reported in one line, and the default
/// used; an unusable directory is reported once. Threads: any. Never fails; may throw std::bad_alloc.
RsocketConfig load_rsocket_config(const char* directory, const RsocketOverrides& overrides, const Report& report);

}  // namespace ringsock::config
