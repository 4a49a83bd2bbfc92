// RLIMIT_FSIZE, which also holds for memfds: a process that makes a file larger than that gets SIGXFSZ.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace ringsock {

/// Returns whether this process may make a file of that size. errno is kept when it may. Threads: any.
[[nodiscard]] inline bool may_make_file_of(std::uint64_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

}  // namespace ringsock
