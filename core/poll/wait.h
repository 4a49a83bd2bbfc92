// Waits until an endpoint is ready: spins, arms, looks once more, sleeps.
#pragma once

#include <cerrno>
#include <cstdint>
#include <utility>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/poll/held_signals.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/endpoint.h"
#include "core/statistics/statistics.h"

namespace ringsock::runtime {

/// Returns the end of a call that begins now and may take `timeout`; Nanos::max() means for ever in both. A call that
/// is made again after functions of the application (due_calls.h) ends when it would have ended without them.
inline Nanos deadline_after(Nanos timeout) {
  if (timeout == Nanos::max()) return timeout;
  if (this_thread.due.is_resumed && this_thread.due.has_deadline) [[unlikely]]
    return Nanos(this_thread.due.deadline);
  const Nanos now = monotonic_now();
  return timeout > Nanos::max() - now ? Nanos::max() : now + timeout;
}

/// Sleeps on the descriptors of endpoint.arm(), on this thread's bell and until `deadline` or endpoint.deadline(), with
/// the signal mask `mask` unless that is null. `watch` has left the endpoint afterwards. After ok() the caller looks
/// again.
/// @param may_restart whether SA_RESTART makes the call go on; false for a transfer that is partly done
/// Errors: EAGAIN `deadline` has passed; EINTR; ERESTART the call goes on once the handler of a signal has run, which
/// waits for the end of the call (core/runtime/library_call.h).
Status sleep_on(Endpoint& endpoint, SleeperWatch& watch, WaitFds fds, Nanos deadline, const sigset_t* mask,
                bool may_restart);

/// Returns `answer`, of a call that waits until `deadline`. If it ends the call for functions of the application, the
/// call will be made again after them, with the same deadline.
template <class T>
Result<T> keeping(Nanos deadline, Result<T> answer) {
  if (!answer && has_due_calls()) [[unlikely]]
    keep_deadline(deadline);
  return answer;
}

/// Returns whether a call that was made again after functions of the application has waited long enough, although there
/// is always something for them.
inline bool is_over(Nanos deadline) {
  return this_thread.due.is_resumed && deadline != Nanos::max() && monotonic_now() >= deadline;
}
/// The answer of a wait until `deadline` that has found nothing but such functions.
inline Result<int> found_due_calls(Nanos deadline) {
  return is_over(deadline) ? Result<int>(0) : keeping(deadline, Result<int>(kForDueCalls));
}

/// Makes a fork(2) in another thread wake the call, because the child may use the endpoint from then on.
class SleepingCall {
 public:
  explicit SleepingCall(Endpoint& endpoint) : endpoint_(endpoint) { endpoint_.begin_sleep(); }
  SleepingCall(const SleepingCall&) = delete;
  SleepingCall& operator=(const SleepingCall&) = delete;
  ~SleepingCall() { endpoint_.end_sleep(); }

 private:
  Endpoint& endpoint_;
};

template <class T>
bool would_block(const Result<T>& answer) {
  return !answer && answer.error().code == EAGAIN;
}

/// How a call spins before it sleeps.
struct Spinning {
  unsigned stride = Spinner::kDefaultStride;         ///< of BasicSpinner
  bool (*is_useless)(Endpoint& endpoint) = nullptr;  ///< asked before each attempt
  [[nodiscard]] bool may_go_on(Endpoint& endpoint) const { return is_useless == nullptr || !is_useless(endpoint); }
};

/// retry_until_ready() for a caller that has made the first attempt, just now.
/// @param answer  of that attempt
template <class Answer, class Attempt>
Answer wait_until_ready(Answer answer, Endpoint& endpoint, std::uint32_t interest, Nanos deadline, Attempt&& attempt,
                        bool may_restart, Spinning spinning) {
  HeldSignals signals(nullptr);
  while (would_block(answer)) {
    if (endpoint.taken_in_turns() == 0) {
      const WaitFor what = endpoint.awaits_first() ? WaitFor::first : WaitFor::operation;
      Spinner spinner(what, deadline, signals, spinning.stride);
      while (spinning.may_go_on(endpoint) && spinner.again()) {
        answer = attempt();
        if (!would_block(answer)) {
          spinner.paid_off();
          if (SocketStatistics* counters = endpoint.statistics()) counters->count_spin_paid();
          return answer;
        }
      }
    }
    const SleepingCall sleeping(endpoint);
    // The endpoint is watched before it is armed, and armed before the last look: every event after that look wakes the
    // thread.
    SleeperWatch watch(endpoint, interest, thread_bell(), true);
    const WaitFds fds = endpoint.arm();
    answer = attempt();
    if (!would_block(answer)) return answer;
    const Status slept = watch.entered() ? sleep_on(endpoint, watch, fds, deadline, signals.mask(), may_restart)
                                         : Error{EBADF, "wait: closed"};
    answer = attempt();
    if (!slept && would_block(answer)) return slept.error();
  }
  return answer;
}

/// Calls `attempt`, a Result<T>(), spinning and then sleeping, until it returns something other than EAGAIN. The
/// endpoint must be pinned.
/// @param interest  EPOLL* bits that `attempt` waits for.
/// @param deadline  CLOCK_MONOTONIC, Nanos::max() for ever.
/// @param may_restart  false when the call has moved bytes already
/// @return the attempt's answer; EAGAIN once the deadline has passed; EINTR when a signal handler ran, unless
///         `may_restart`, there is no deadline and all handlers of the process ask for SA_RESTART, as in signal(7).
template <class Attempt>
auto retry_until_ready(Endpoint& endpoint, std::uint32_t interest, Nanos deadline, Attempt attempt,
                       bool may_restart = true, Spinning spinning = {}) -> decltype(attempt()) {
  auto answer = attempt();
  if (!would_block(answer)) return answer;
  return wait_until_ready(std::move(answer), endpoint, interest, deadline, attempt, may_restart, spinning);
}

}  // namespace ringsock::runtime
