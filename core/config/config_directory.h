// Where the configuration files are.
#pragma once

namespace ringsock::config {

/// RINGSOCK_CONFIG_DIR, or else rdma/rsocket under the system configuration directory of this build. Lives as long as
/// the environment. A set-uid program does not let its caller choose its files.
const char* config_directory();

}  // namespace ringsock::config
