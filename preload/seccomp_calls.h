// A program puts itself under a seccomp filter.
#pragma once

namespace ringsock::preload {

/// Before seccomp(2) with these arguments, and before prctl(2) with PR_SET_SECCOMP: where the filter forbids what rings
/// need, connections on a ring become the kernel's, by a relay (hand_over.h), and so do all sockets to come.
void before_seccomp(unsigned operation, unsigned flags, const void* arguments) noexcept;
void before_prctl_seccomp(unsigned long mode, const void* program) noexcept;

/// Whether liburcu, which is who calls from `caller`, must do without membarrier(2): a filter was there before us.
bool hides_membarrier(const void* caller) noexcept;

}  // namespace ringsock::preload
