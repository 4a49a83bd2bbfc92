// Finds out what a seccomp filter that this process inherited lets through.
#pragma once

#include <span>

#include "core/base/rare_call_table.h"

namespace ringsock {

/// Tries each call in a child, which has this process's filter and may die of the attempt; the next child goes on
/// behind it. The application sees nothing of these children: they end without a signal, and only wait4(2) with __WALL
/// finds them. Takes a clone(2): a filter that kills for that cannot be probed (RINGSOCK_SECCOMP). The verdict is
/// `unknown` from the call on at which a child hung or could not be watched. Threads: any.
Verdicts probe_seccomp_filter(std::span<const RareCallRow> rows);

}  // namespace ringsock
