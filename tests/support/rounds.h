// How often a test repeats what goes wrong seldom.
#pragma once

#include <cstdlib>

namespace ringsock::support {

/// Returns `usual`, or `in_long_runs` under ./check --long.
inline unsigned rounds(unsigned usual, unsigned in_long_runs) {
  return std::getenv("RINGSOCK_TEST_LONG") != nullptr ? in_long_runs : usual;
}

}  // namespace ringsock::support
