// The end of a process whose main thread has ended before the library's threads.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <utility>

#include "core/base/clock.h"
#include "core/base/own_threads.h"

namespace ringsock::runtime {

enum class MainThreadEnd : std::uint8_t {
  by_libc,         ///< pthread_exit(3), pthread_cancel(3): the last thread calls exit(3)
  by_system_call,  ///< exit(2)
};

/// Finds out whether the application has no thread left. The kernel tells nobody of the end of a thread, so the service
/// thread looks: after a millisecond first, then ever more rarely, and never before the main thread begins to end.
/// Used by one thread at a time.
class LastLook {
 public:
  /// Called by the main thread when it begins to end.
  void begin(MainThreadEnd how) {
    // libc ends the thread by the system call, too.
    if (next_ != Nanos::max()) return;
    how_ = how;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
    interval_ = kFirst;
    next_ = monotonic_now() + interval_;
  }
  /// Returns when finds_nobody() is to be called; never is Nanos::max().
  [[nodiscard]] Nanos next() const { return next_; }
  /// Looks if a look is due. Two looks in a row must find nobody, because a thread that ends may just have started
  /// another one.
  bool finds_nobody() {
    if (monotonic_now() < next_) return false;
    const bool found_nobody = std::exchange(is_nobody_there_, are_only_own_threads_left());
    interval_ = is_nobody_there_ ? kFirst : std::min(interval_ * 2, kMost);
    next_ = monotonic_now() + interval_;
    return found_nobody && is_nobody_there_;
  }
  [[nodiscard]] MainThreadEnd how() const { return how_; }
  /// Returns the signals that the main thread blocked.
  [[nodiscard]] const sigset_t& mask() const { return mask_; }

 private:
  static constexpr Nanos kFirst = std::chrono::milliseconds(1);
  static constexpr Nanos kMost = std::chrono::milliseconds(200);
  Nanos next_ = Nanos::max();
  Nanos interval_ = kFirst;
  bool is_nobody_there_ = false;
  MainThreadEnd how_ = MainThreadEnd::by_libc;
  sigset_t mask_{};
};

}  // namespace ringsock::runtime
