// Opens shared memory of another process by the number of its descriptor.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// Opens the file that `process` has open under the number `descriptor`. It must be a file of tmpfs with that inode
/// number; this is checked before it is opened, because opening a device or a FIFO has effects. Never blocks. The
/// kernel permits it where it permits reading the process (ptrace(2), "PTRACE_MODE_READ"). Errors: EPROTO another file;
/// EACCES, ENOENT not permitted, or gone.
Result<UniqueFd> open_memory_of(pid_t process, std::uint32_t descriptor, std::uint64_t inode);

}  // namespace ringsock::soft
