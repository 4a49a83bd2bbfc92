// Duplicates that the library keeps.
#pragma once

#include "core/base/unique_fd.h"

namespace ringsock {

/// Returns a duplicate under a high number, as out_of_the_way() chooses it, or under another one above 2;
/// close-on-exec. It is never where the application's next file would be, as one under the lowest free number is. Costs
/// one system call, or five above the limit. Empty, with errno, when no number above 2 is free or `fd` is not open;
/// else errno is kept.
UniqueFd own_duplicate(int fd);

}  // namespace ringsock
