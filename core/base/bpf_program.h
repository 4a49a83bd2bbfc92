// Runs a seccomp filter's program for a call that is not made.
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <span>

#include "core/base/rare_call_table.h"

namespace ringsock {

/// The program's answer to a call of this table, on this architecture: SECCOMP_RET_* with data. A program that the
/// kernel would not take is answered by SECCOMP_RET_KILL_PROCESS. Source: seccomp(2), the kernel's
/// networking/filter.rst.
std::uint32_t run_filter(std::span<const sock_filter> program, const RareCallRow& call);
Verdict verdict_of(std::span<const sock_filter> program, const RareCallRow& call);

}  // namespace ringsock
