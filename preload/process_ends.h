// The end of a process for which no destructor runs.
#pragma once

namespace ringsock::preload {

/// Called right before the process ends by _exit(2), quick_exit(3) or exit_group(2): peers learn how their connections
/// end. May be called in signal handlers.
void process_ends_at_once() noexcept;

}  // namespace ringsock::preload
