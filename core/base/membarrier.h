// membarrier(2).
#pragma once

#include <cstdint>

namespace ringsock {

/// The threads that a barrier reaches.
enum class BarrierScope : std::uint8_t {
  this_process,          ///< MEMBARRIER_CMD_PRIVATE_EXPEDITED
  registered_processes,  ///< MEMBARRIER_CMD_GLOBAL_EXPEDITED
};

/// Registers this process for barriers of that scope, once. Cheap afterwards. The registration belongs to the address
/// space: a forked child inherits it, exec(2) drops it. Returns false when the kernel or a filter refuses. Threads:
/// any.
bool register_for_barriers(BarrierScope scope);
/// Carries the barrier out where the process is registered and no filter forbids it.
void run_barrier(BarrierScope scope);

}  // namespace ringsock
