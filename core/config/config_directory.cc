#include "core/config/config_directory.h"

#include <cstdlib>

namespace ringsock::config {

const char* config_directory() {
  const char* chosen = ::secure_getenv("RINGSOCK_CONFIG_DIR");
  return chosen != nullptr ? chosen : SYSCONFDIR "/rdma/rsocket";
}

}  // namespace ringsock::config
