// The kernel's number of the calling thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ringsock {

// A plain variable of a library that is loaded with the program, so no function has to find its address.
extern __attribute__((tls_model("initial-exec"))) __thread pid_t known_thread_id;
std::uint64_t learn_thread_id();

/// Returns the calling thread's number, as gettid(2) does. Costs one load of thread-local memory.
inline std::uint64_t this_thread_id() {
  if (known_thread_id == 0) [[unlikely]]
    return learn_thread_id();
  return static_cast<std::uint64_t>(known_thread_id);
}

}  // namespace ringsock
