#include "core/runtime/sleeper.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/libc_calls.h"
#include "core/base/unique_fd.h"
#include "core/runtime/held_signals.h"
#include "core/runtime/wait_tally.h"

namespace ringsock::runtime {

thread_local constinit WaitTally wait_tally;

namespace {

// A child shares its parent's eventfds; each would wake the other.
constinit std::atomic<unsigned> forks{0};
[[gnu::constructor]] void install_fork_handler() {
  at_fork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

struct ThreadBell {
  UniqueFd fd;
  unsigned generation = 0;
  bool rung_by_itself = false;
};
thread_local ThreadBell bell_of_thread;

}  // namespace

unsigned fork_generation() { return forks.load(std::memory_order_relaxed); }

int thread_bell() {
  ThreadBell& bell = bell_of_thread;
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
  ::eventfd_read(bell_of_thread.fd.get(), &count);
  errno = saved_errno;
}

bool take_own_ring() { return std::exchange(bell_of_thread.rung_by_itself, false); }

void SleeperWatch::endpoint_changed() noexcept {
  if (bell_ == bell_of_thread.fd.get()) {
    bell_of_thread.rung_by_itself = true;
    return;
  }
  const int saved_errno = errno;
  if (bell_ >= 0) ::eventfd_write(bell_, 1);
  errno = saved_errno;
}

Result<int> poll_until(std::span<pollfd> fds, Nanos deadline, const sigset_t* mask) {
  const bool for_ever = deadline == Nanos::max();
  const timespec left = to_timespec(for_ever ? deadline : std::max(deadline - monotonic_now(), Nanos::zero()));
  // Not by ::ppoll(), which is no cancellation point here (libc_wraps.cc).
  const int ready = libc_calls.ppoll(fds.data(), fds.size(), for_ever ? nullptr : &left, mask);
  if (ready < 0) return Error::last("ppoll");
  return ready;
}

Result<int> sleep_until(WaitFor what, std::span<pollfd> fds, Nanos deadline, const sigset_t* mask) {
  if (what == WaitFor::readiness) wait_tally.slept = true;
  const Nanos begun = monotonic_now();
  const Result<int> woken = poll_until(fds, deadline, mask);
  if (!woken) return woken;
  const Nanos slept = monotonic_now() - begun;
  if (*woken > 0) {
    note_sleep(what, slept);
  } else {
    note_vain_sleep(what, slept);
  }
  return woken;
}

bool handlers_restart_calls() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (is_fault(signal)) continue;
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    const bool has_handler =
        (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (has_handler && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

}  // namespace ringsock::runtime
