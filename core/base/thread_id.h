// The kernel's number of the calling thread.
#pragma once

#include <cstdint>

#include "core/base/this_thread.h"

namespace ringsock {

std::uint64_t learn_thread_id();

/// Returns the calling thread's number, as gettid(2) does. Costs one load of thread-local memory.
inline std::uint64_t this_thread_id() {
  if (this_thread.id == 0) [[unlikely]]
    return learn_thread_id();
  return static_cast<std::uint64_t>(this_thread.id);
}

}  // namespace ringsock
