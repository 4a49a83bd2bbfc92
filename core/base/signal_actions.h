// What sigaction(2) has set.
#pragma once

#include <csignal>

namespace ringsock {

/// Returns whether the action calls a function. SA_SIGINFO only says how: Linux takes no notice of it with SIG_DFL and
/// SIG_IGN, which both members of the union can hold.
inline bool is_handler(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

}  // namespace ringsock
