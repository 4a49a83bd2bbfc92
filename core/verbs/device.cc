#include "core/verbs/device.h"

#include "core/verbs/connection_manager.h"

namespace ringsock::verbs {

// Here, because the destructor of the result needs the complete ConnectionId.
Result<std::unique_ptr<ConnectionId>> Device::create_id(PortSpace /*space*/) { return unsupported("create_id"); }

}  // namespace ringsock::verbs
