// Calls on descriptors that a program makes by syscall(2).
#pragma once

#include <array>
#include <optional>

namespace ringsock::preload {

/// Calls the intercepted function of the same name when the system call concerns an endpoint, and returns its result.
/// Returns nothing when the kernel is to carry the call out.
/// @param arguments  the system call's, which differ from the function's for ppoll, pselect6 and epoll_pwait
std::optional<long> carry_system_call(long number, const std::array<long, 6>& arguments);

}  // namespace ringsock::preload
