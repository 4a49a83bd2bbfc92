// The results of calls that wait for several descriptors, for statistics.
#pragma once

#include <algorithm>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock::runtime {

/// The tally of a call.
struct WaitTally {
  int from_endpoints = 0;  ///< ready at the last look
  bool slept = false;
  Nanos slept_for{};
  std::optional<unsigned> polling_percent{};  ///< of a PollingShare, at the end of a window
};

/// The share of a thread's time in which it polls. Used by one thread.
class PollingShare {
 public:
  static constexpr Nanos kWindow = std::chrono::seconds(1);

  /// Adds a call. Returns the share of a window that has ended with it, in percent. Calls on another set begin a new
  /// window.
  std::optional<unsigned> add(int slot, Nanos begun, Nanos ended, Nanos slept_for) {
    if (slot != slot_) *this = PollingShare(slot, begun);
    polled_ += ended - begun - slept_for;
    const Nanos window = ended - window_began_;
    if (window < kWindow) return std::nullopt;
    const auto percent = static_cast<unsigned>(std::clamp<Nanos::rep>(polled_ * 100 / window, 0, 100));
    *this = PollingShare(slot, ended);
    return percent;
  }
  constexpr PollingShare() = default;

 private:
  constexpr PollingShare(int slot, Nanos began) : slot_(slot), window_began_(began) {}
  int slot_ = -1;
  Nanos window_began_{};
  Nanos polled_{};
};

/// Counts the calls that wait: libvma's statistics page does. Threads: any.
class WaitCounters {
 public:
  static constexpr int kNowhere = -1, kSelect = 0, kPoll = 1;

  WaitCounters(const WaitCounters&) = delete;
  WaitCounters& operator=(const WaitCounters&) = delete;
  /// Returns a slot for an epoll set, kNowhere when none is left.
  virtual int open_epoll(int epoll_fd) = 0;
  virtual void close_epoll(int slot) = 0;
  /// @param ready the result of the call
  virtual void count(int slot, const Result<int>& ready, const WaitTally& tally) = 0;

 protected:
  constexpr WaitCounters() = default;
  ~WaitCounters() = default;
};

}  // namespace ringsock::runtime
