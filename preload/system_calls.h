// Calls on descriptors that a program makes by syscall(2).
#pragma once

#include <array>
#include <optional>

namespace ringsock::preload {

/// What syscall(2) is to answer when the call concerns sockets of ours: that of the function of the same name, which is
/// called. Nothing: the kernel's to answer.
/// @param arguments  of the system call, which differ from the function's for ppoll, pselect6 and epoll_pwait
std::optional<long> carry_system_call(long number, const std::array<long, 6>& arguments);

}  // namespace ringsock::preload
