// rt_sigaction(2), made by syscall(2).
#pragma once

#include <array>
#include <optional>

namespace ringsock::preload {

/// Returns nothing when the kernel is to carry the call out.
std::optional<long> sigaction_by_number(const std::array<long, 6>& arguments);

}  // namespace ringsock::preload
