// Sleeps of threads that take turns.
#pragma once

#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <array>
#include <csignal>
#include <cstdint>

#include "core/base/at_fork.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// An epoll set for one thread's sleeps in turn. Its members stay registered between sleeps: with EPOLLEXCLUSIVE they
/// wake no thread, and use up no turn, while the thread is not asleep.
class TurnSleeper {
 public:
  /// Returns the set for these members, made anew when they differ from last time. -1 when it cannot be made.
  int set_for(const WaitFds& fds, std::uint64_t serial, int bell) {
    const Members wanted{serial, fork_generation(), fds.shared, fds.own, bell};
    if (set_ && wanted == members_ && sleep_on_own(fds.sleeps_on_own)) return set_.get();
    set_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
    signals_.reset();
    members_ = wanted;
    sleeps_on_own_ = fds.sleeps_on_own;
    bool whole = static_cast<bool>(set_);
    for (const int fd : fds.shared) whole = whole && enter(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE);
    whole = whole && enter(EPOLL_CTL_ADD, fds.own, events_of_own()) && enter(EPOLL_CTL_ADD, bell, EPOLLIN);
    if (!whole) set_.reset();
    return set_.get();
  }
  /// Makes the set tell of `wanted`, which the thread blocks while it sleeps. Returns the descriptor that is ready
  /// then, -1 when there is none to be had.
  int tell_of(const sigset_t& wanted) {
    if (signals_ && is_equal(wanted, told_)) return signals_.get();
    if (signals_) {
      if (::signalfd(signals_.get(), &wanted, 0) < 0) return -1;
    } else {
      signals_ = out_of_the_way(UniqueFd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC)));
      if (!signals_ || !enter(EPOLL_CTL_ADD, signals_.get(), EPOLLIN)) signals_.reset();
    }
    told_ = wanted;
    return signals_.get();
  }
  void forget() { set_.reset(); }
  static bool is_equal(const sigset_t& one, const sigset_t& other) {
    for (int signal = 1; signal < NSIG; ++signal) {
      if (sigismember(&one, signal) != sigismember(&other, signal)) return false;
    }
    return true;
  }

 private:
  struct Members {
    std::uint64_t serial = 0;
    unsigned generation = 0;
    std::array<int, 2> shared{};
    int own = -1;
    int bell = -1;
    bool operator==(const Members&) const = default;
  };
  /// The descriptor `own` stays a member that tells nothing: making the set anew costs ten times as much.
  bool sleep_on_own(bool wanted) {
    if (wanted == sleeps_on_own_) return true;
    sleeps_on_own_ = wanted;
    return enter(EPOLL_CTL_MOD, members_.own, events_of_own());
  }
  [[nodiscard]] std::uint32_t events_of_own() const { return sleeps_on_own_ ? std::uint32_t{EPOLLIN} : 0; }
  [[nodiscard]] bool enter(int operation, int fd, std::uint32_t events) const {
    if (fd < 0) return true;
    epoll_event interest{};
    interest.events = events;
    interest.data.fd = fd;
    return ::epoll_ctl(set_.get(), operation, fd, &interest) == 0;
  }
  UniqueFd set_;
  Members members_;
  bool sleeps_on_own_ = true;
  UniqueFd signals_;  ///< a signalfd(2)
  sigset_t told_{};   ///< what it tells of
};

}  // namespace ringsock::runtime
