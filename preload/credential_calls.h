// capset(2), made by syscall(2).
#pragma once

#include <array>

namespace ringsock::preload {

long capset_by_number(const std::array<long, 6>& arguments);

}  // namespace ringsock::preload
