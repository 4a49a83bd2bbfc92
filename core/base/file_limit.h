// RLIMIT_FSIZE, which holds for memfds too: who makes a file larger than that gets a SIGXFSZ.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace ringsock {

/// Whether this process may make a file so large. errno is kept when it may. Threads: any.
[[nodiscard]] inline bool may_make_file_of(std::uint64_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

}  // namespace ringsock
