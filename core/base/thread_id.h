// Which thread this is.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ringsock {

// A plain word of a library that is loaded with the program: no call to find it.
extern __attribute__((tls_model("initial-exec"))) __thread pid_t known_thread_id;
std::uint64_t learn_thread_id();

/// The calling thread, as the kernel counts. One look at thread-local memory.
inline std::uint64_t this_thread_id() {
  if (known_thread_id == 0) [[unlikely]]
    return learn_thread_id();
  return static_cast<std::uint64_t>(known_thread_id);
}

}  // namespace ringsock
