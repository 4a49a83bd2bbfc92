// Shared memory of another process, opened by the number of its descriptor.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// A descriptor of our own for what `process` has open under the number `descriptor`: a file of tmpfs with that inode
/// number, looked at before it is opened, because opening a device or a FIFO has effects. Never blocks. The kernel
/// allows it where it allows to look into the process (ptrace(2), "PTRACE_MODE_READ").
/// Errors: EPROTO another file; EACCES, ENOENT not allowed, or gone.
Result<UniqueFd> open_memory_of(pid_t process, std::uint32_t descriptor, std::uint64_t inode);

}  // namespace ringsock::soft
