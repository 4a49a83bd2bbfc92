// Programs that put themselves under a seccomp filter.
#pragma once

namespace ringsock::preload {

/// Called before seccomp(2) with these arguments, and before prctl(2) with PR_SET_SECCOMP. When the filter forbids what
/// rings need, connections on a ring move to the kernel by a relay (hand_over.h), and all future sockets stay with the
/// kernel.
void before_seccomp(unsigned operation, unsigned flags, const void* arguments) noexcept;
void before_prctl_seccomp(unsigned long mode, const void* program) noexcept;

/// Returns whether `caller` is liburcu-bp and must do without membarrier(2), because a filter was there before this
/// library.
bool hides_membarrier(const void* caller) noexcept;

}  // namespace ringsock::preload
