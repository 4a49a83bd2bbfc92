// Which thread this is.
#pragma once

#include <cstdint>

namespace ringsock::vma {

/// The calling thread, as the kernel counts. One look at thread-local memory.
std::uint64_t this_thread_id();

}  // namespace ringsock::vma
