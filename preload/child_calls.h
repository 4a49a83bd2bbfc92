// wait4(2) and waitid(2), made by syscall(2).
#pragma once

#include <array>

namespace ringsock::preload {

long wait4_by_number(const std::array<long, 6>& arguments);
long waitid_by_number(const std::array<long, 6>& arguments);

}  // namespace ringsock::preload
