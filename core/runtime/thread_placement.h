// The CPUs of a thread of the library.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"

namespace ringsock::runtime {

/// Where a thread runs.
struct ThreadPlacement {
  std::vector<unsigned> cpus{};    ///< empty: as the thread that starts it
  std::string cpuset_directory{};  ///< of the kernel's cpuset file system, or a control group; empty: none

  [[nodiscard]] bool is_default() const { return cpus.empty() && cpuset_directory.empty(); }
};

/// Moves the calling thread into the cpuset, and then to the CPUs. Errors: those of open(2) and write(2) for the file
/// of the cpuset's threads; those of sched_setaffinity(2), EINVAL when none of the CPUs may be used.
Status place_this_thread(const ThreadPlacement& placement);

}  // namespace ringsock::runtime
