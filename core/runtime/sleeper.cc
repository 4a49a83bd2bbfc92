#include "core/runtime/sleeper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
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

struct ThreadBell {
  UniqueFd fd;
  unsigned generation = 0;  ///< a child shares its parent's eventfds; each would wake the other
  bool rung_by_itself = false;
};
thread_local ThreadBell bell_of_thread;

}  // namespace

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

namespace {

/// An epoll set for one thread's sleeps in turn. Its members stay from sleep to sleep: with EPOLLEXCLUSIVE they wake
/// nobody, and take nobody's turn, while the thread is not asleep.
class TurnSleeper {
 public:
  /// The set for these members, made anew when they are others than last time. -1: it cannot be had.
  int set_for(const WaitFds& fds, std::uint64_t serial, int bell) {
    const Members wanted{serial, fork_generation(), fds.shared, fds.own, bell};
    if (set_ && wanted == members_) return set_.get();
    set_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
    members_ = wanted;
    bool whole = static_cast<bool>(set_);
    for (const int fd : fds.shared) whole = whole && enter(fd, EPOLLIN | EPOLLEXCLUSIVE);
    whole = whole && enter(fds.own, EPOLLIN) && enter(bell, EPOLLIN);
    if (!whole) set_.reset();
    return set_.get();
  }
  void forget() { set_.reset(); }

 private:
  struct Members {
    std::uint64_t serial = 0;
    unsigned generation = 0;
    std::array<int, 2> shared{};
    int own = -1;
    int bell = -1;
    bool operator==(const Members&) const = default;
  };
  [[nodiscard]] bool enter(int fd, std::uint32_t events) const {
    if (fd < 0) return true;
    epoll_event interest{};
    interest.events = events;
    interest.data.fd = fd;
    return ::epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &interest) == 0;
  }
  UniqueFd set_;
  Members members_;
};
thread_local TurnSleeper turn_sleeper;

/// For epoll_pwait(2), rounded up.
int to_milliseconds(Nanos deadline) {
  if (deadline == Nanos::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - monotonic_now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

}  // namespace

Result<unsigned> sleep_in_turn(const WaitFds& fds, std::uint64_t serial, int bell, Nanos deadline,
                               const sigset_t* mask) {
  const int set = turn_sleeper.set_for(fds, serial, bell);
  if (set < 0) return Error{EOPNOTSUPP, "sleep in turn"};
  std::array<epoll_event, 4> ready;
  const int count =
      libc_calls.epoll_pwait(set, ready.data(), static_cast<int>(ready.size()), to_milliseconds(deadline), mask);
  if (count < 0 && errno == EINTR) return Error::last("epoll_pwait");
  if (count < 0) {  // the application has closed the number
    turn_sleeper.forget();
    return Error{EOPNOTSUPP, "sleep in turn"};
  }
  unsigned found = 0;
  for (int i = 0; i < count; ++i) found |= ready[static_cast<std::size_t>(i)].data.fd == bell ? 2U : 1U;
  return found;
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
