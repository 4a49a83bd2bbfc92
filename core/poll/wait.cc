#include "core/poll/wait.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/handlers_wait.h"

namespace ringsock::runtime {

namespace {
/// The longest sleep without a bell, for lack of descriptors: another thread's work is not noticed meanwhile.
constexpr Nanos kBlindSleep{10'000'000};
}  // namespace

Status sleep_on(Endpoint& endpoint, SleeperWatch& watch, WaitFds fds, Nanos deadline, const sigset_t* mask,
                bool may_restart) {
  if (take_own_ring()) {
    watch.leave();
    return ok();
  }
  const int bell = thread_bell();
  const short first = fds.tells_of_room && watch.waits_for_room() ? POLLOUT : POLLIN;
  std::array<pollfd, 3> entries{{{fds.fd[0], first, 0}, {fds.fd[1], POLLIN, 0}, {bell, POLLIN, 0}}};
  Nanos wake_at = std::min(deadline, endpoint.deadline());
  if (bell < 0) wake_at = std::min(wake_at, monotonic_now() + kBlindSleep);

  Result<int> ready = Error{EOPNOTSUPP, "wait"};
  bool in_turn = false;
  if (fds.shared[0] >= 0 || fds.shared[1] >= 0) {
    const auto woken = sleep_in_turn(fds, endpoint.taken_in_turns(), bell, wake_at, mask);
    ready = woken ? Result<int>(static_cast<int>(*woken)) : woken.error();
    in_turn = static_cast<bool>(woken);
    if (woken) {
      entries[0].revents = static_cast<short>(*woken & 1U);
      entries[2].revents = static_cast<short>(*woken & 2U);
    }
  }
  if (!ready && ready.error().code == EOPNOTSUPP) ready = sleep_until(WaitFor::operation, entries, wake_at, mask);
  watch.leave();
  if (!ready) {
    const bool restarts =
        may_restart && ready.error().code == EINTR && deadline == Nanos::max() && handlers_restart_calls();
    if (restarts && this_thread.handlers.is_signal_due) return Error{ERESTART, "wait: restarts behind the handler"};
    return restarts ? ok() : Status(ready.error());
  }
  if (entries[2].revents != 0) silence_thread_bell();
  if (entries[0].revents != 0 || entries[1].revents != 0) {
    endpoint.woken();
    // Other threads may have been about to sleep on the doorbell that this one consumed. Descriptors that are shared in
    // turns stay readable until the event is taken.
    if (!in_turn) endpoint.notify_watchers();
  }
  if (*ready == 0 && deadline != Nanos::max() && monotonic_now() >= deadline) return Error{EAGAIN, "wait: timed out"};
  return ok();
}

}  // namespace ringsock::runtime
