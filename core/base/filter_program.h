// Runs a seccomp filter's program without making the call.
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <span>

#include "core/base/rare_call_table.h"

namespace ringsock {

/// Returns the program's answer to a call of this table on this architecture: SECCOMP_RET_* with data. The result is
/// SECCOMP_RET_KILL_PROCESS for a program that the kernel would refuse. Source: seccomp(2), the kernel's
/// networking/filter.rst.
std::uint32_t run_filter(std::span<const sock_filter> program, const RareCallRow& call);
Verdict verdict_of(std::span<const sock_filter> program, const RareCallRow& call);

}  // namespace ringsock
