#include "core/poll/sleeper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/handlers_wait.h"
#include "core/base/libc_calls.h"
#include "core/base/of_thread.h"
#include "core/base/poll_until.h"
#include "core/base/rare_calls.h"
#include "core/base/signal_actions.h"
#include "core/base/unique_fd.h"
#include "core/poll/held_signals.h"
#include "core/poll/thread_waits.h"

namespace ringsock::runtime {

thread_local constinit ThreadWaits thread_waits;

namespace {

int number_of_bell() {
  const ThreadBell* const bell = thread_waits.bell.find();
  return bell != nullptr ? bell->fd.get() : -1;
}

}  // namespace

int thread_bell() {
  ThreadBell* const found = thread_waits.bell.get();
  if (found == nullptr) return -1;
  ThreadBell& bell = *found;
  const unsigned generation = fork_generation();
  if (!bell.fd || bell.generation != generation) {
    bell.fd = out_of_the_way(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
    bell.generation = generation;
  }
  return bell.fd.get();
}

void silence_thread_bell() {
  const int saved_errno = errno;
  eventfd_t count = 0;
  ::eventfd_read(number_of_bell(), &count);
  errno = saved_errno;
}

bool take_own_ring() {
  ThreadBell* const bell = thread_waits.bell.find();
  return bell != nullptr && std::exchange(bell->rung_by_itself, false);
}

void SleeperWatch::endpoint_changed() noexcept {
  ThreadBell* const own = thread_waits.bell.find();
  if (own != nullptr && bell_ == own->fd.get()) {
    own->rung_by_itself = true;
    return;
  }
  const int saved_errno = errno;
  if (bell_ >= 0) ::eventfd_write(bell_, 1);
  errno = saved_errno;
}

namespace {

/// Converts for epoll_pwait(2), rounded up.
int to_milliseconds(Nanos deadline) {
  if (deadline == Nanos::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - monotonic_now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

Result<int> note_duration(WaitFor what, Nanos begun, Result<int> woken) {
  if (!woken) return woken;
  const Nanos slept = monotonic_now() - begun;
  if (what == WaitFor::readiness) thread_waits.tally.slept_for += slept;
  if (*woken > 0) {
    note_sleep(what, slept);
  } else {
    note_vain_sleep(what, slept);
  }
  return woken;
}

}  // namespace

Result<int> sleep_until(WaitFor what, std::span<pollfd> fds, Nanos deadline, const sigset_t* mask) {
  if (what == WaitFor::readiness) thread_waits.tally.slept = true;
  const Nanos begun = monotonic_now();
  return note_duration(what, begun, poll_until(fds, deadline, mask));
}

Result<int> sleep_on_epoll_file(int epoll_fd, std::span<epoll_event> events, Nanos deadline, const sigset_t* mask) {
  thread_waits.tally.slept = true;
  // Signals may be held. What has come meanwhile without a handler would end epoll_pwait(2), but not ppoll(2).
  if (mask != nullptr) {
    const Result<int> passed = poll_until({}, Nanos::zero(), mask);
    if (!passed) return passed;
  }
  const Nanos begun = monotonic_now();
  const BeforeSleep sleep(mask);
  if (sleep.is_interrupted()) return Error{EINTR, "epoll_pwait"};
  const int errno_before = errno;
  const int woken = libc_calls.epoll_pwait(epoll_fd, events.data(), static_cast<int>(events.size()),
                                           to_milliseconds(deadline), sleep.mask());
  const Result<int> answer = woken < 0 ? Result<int>(Error::last("epoll_pwait")) : woken;
  errno = errno_before;
  return note_duration(WaitFor::readiness, begun, answer);
}

namespace {

/// While it exists the calling thread blocks all signals, but for faults and those of libc.
class SignalsHeld {
 public:
  /// @param mask  what the thread is to block while it sleeps; null: what it blocks now
  explicit SignalsHeld(const sigset_t* mask) {
    held_.hold();
    asleep_ = mask != nullptr ? mask_of(bits_of(mask)) : held_.own();
  }

  /// Those that the sleep lets through.
  [[nodiscard]] sigset_t wanted() const {
    sigset_t out = all_but_faults();
    for (int signal = 1; signal < NSIG; ++signal) {
      if (sigismember(&asleep_, signal) == 1) sigdelset(&out, signal);
    }
    return out;
  }
  /// Lets pending signals through. Returns whether a handler has run: ppoll(2) tells that. epoll_pwait(2) also ends for
  /// signals without a handler, and when a stopped process continues.
  bool let_through() {
    constexpr timespec kAtOnce{};
    const BeforeSleep sleep(&asleep_);
    return libc_calls.ppoll(nullptr, 0, &kAtOnce, sleep.mask()) < 0 && errno == EINTR;
  }

 private:
  HeldMask held_;
  sigset_t asleep_;
};

}  // namespace

Result<unsigned> sleep_in_turn(const WaitFds& fds, std::uint64_t serial, int bell, Nanos deadline,
                               const sigset_t* mask) {
  const bool may_sleep = is_permitted(RareCall::epoll_pwait) && is_permitted(RareCall::signalfd4);
  TurnSleeper* const sleeper = may_sleep ? thread_waits.turn_sleeper.get() : nullptr;
  const int set = sleeper != nullptr ? sleeper->set_for(fds, serial, bell) : -1;
  if (set < 0) return Error{EOPNOTSUPP, "sleep in turn"};
  SignalsHeld held(mask);
  if (ends_wait(mask)) return Error{EINTR, "sleep in turn"};
  const int signals = sleeper->tell_of(held.wanted());
  if (signals < 0) return Error{EOPNOTSUPP, "sleep in turn"};
  std::array<epoll_event, 5> ready;
  const int count =
      libc_calls.epoll_pwait(set, ready.data(), static_cast<int>(ready.size()), to_milliseconds(deadline), nullptr);
  if (count < 0 && errno == EINTR) return 0U;
  if (count < 0) {  // the application has closed the number
    sleeper->forget();
    return Error{EOPNOTSUPP, "sleep in turn"};
  }
  unsigned found = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = ready[static_cast<std::size_t>(i)].data.fd;
    if (fd != signals) {
      found |= fd == bell ? 2U : 1U;
    } else if (held.let_through()) {
      return Error{EINTR, "sleep in turn"};
    }
  }
  return found;
}

bool handlers_restart_calls() {
  if (this_thread.handlers.is_signal_due) return this_thread.handlers.do_all_restart;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (is_fault(signal)) continue;
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    if (is_handler(action) && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

}  // namespace ringsock::runtime
