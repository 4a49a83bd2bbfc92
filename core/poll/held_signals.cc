#include "core/poll/held_signals.h"

#include <pthread.h>

#include <algorithm>
#include <array>

#include "core/base/signal_actions.h"

namespace ringsock::runtime {

namespace {

/// Returns whether the signal is ignored: the kernel then discards it instead of delivering it.
bool is_ignored(int signal) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0) return true;
  if (is_handler(action)) return false;
  if (action.sa_handler == SIG_IGN) return true;
  constexpr std::array kIgnoredByDefault{SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
  return std::find(kIgnoredByDefault.begin(), kIgnoredByDefault.end(), signal) != kIgnoredByDefault.end();
}

}  // namespace

void HeldSignals::hold() {
  held_.hold();
  are_held_ = true;
  if (mask_ == nullptr) mask_ = &held_.own();
}

bool HeldSignals::look(Nanos now) {
  if (!are_held_) hold();
  ::pthread_testcancel();  // it would take effect where the call sleeps
  next_look_ = now + kInterval;
  sigset_t pending;
  if (::sigpending(&pending) != 0 || sigisemptyset(&pending)) return false;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (sigismember(&pending, signal) == 1 && sigismember(mask_, signal) == 0 && !is_ignored(signal)) return true;
  }
  return false;
}

}  // namespace ringsock::runtime
