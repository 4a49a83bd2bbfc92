#include "core/base/process_state.h"

namespace ringsock {

constinit std::array<std::atomic<void*>, kProcessParts> process_parts{};

}  // namespace ringsock
