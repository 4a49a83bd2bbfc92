// The directory of the configuration files.
#pragma once

namespace ringsock::config {

/// Returns RINGSOCK_CONFIG_DIR if set, otherwise rdma/rsocket under the system configuration directory of this build.
/// The string lives as long as the environment. A set-uid program ignores the variable, so that its caller cannot
/// choose its files.
const char* config_directory();

}  // namespace ringsock::config
