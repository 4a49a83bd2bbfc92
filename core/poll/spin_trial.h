// Finds out whether two threads that answer each other would both gain if they spun longer.
#pragma once

#include <algorithm>

#include "core/base/clock.h"

namespace ringsock::runtime {

/// Long spins in some of a thread's waits, to see whether the waits become short by them.
///
/// When two threads answer each other and both sleep, each waits for two wake-ups, however quick the answers are. Where
/// a wake-up takes longer than the spins of both (60-300 us on busy virtual machines), no spin ever pays, and both go
/// on sleeping although each would have its answer in a microsecond if the other one spun. So after some such sleeps
/// the thread spins for several waits as long as the last sleep took. The trial succeeds when kShortWaits waits in a
/// row are then short, and fails when a spin is in vain or kWaits waits have been long. After each failure twice as
/// many sleeps pass before the next trial: a peer that needs this time for its answers costs little.
class SpinTrial {
 public:
  /// The longest sleep that two wake-ups may explain.
  static constexpr Nanos kLongestSleep{500'000};
  /// A wait that is not longer counts as short.
  static constexpr Nanos kShortWait{100'000};
  /// Sleeps between two trials, at first and at most.
  static constexpr unsigned kFewestSleeps = 16;
  static constexpr unsigned kMostSleeps = 4'096;
  /// More than kFewestSleeps: the peer, which sleeps meanwhile, may need a trial of its own.
  static constexpr unsigned kWaits = 32;
  static constexpr unsigned kShortWaits = 4;

  /// Returns how long the next spin lasts, 0 when there is no trial.
  [[nodiscard]] Nanos reach() const { return waits_left_ > 0 ? reach_ : Nanos::zero(); }
  /// Records a spin in vain.
  void missed() {
    if (waits_left_ > 0) fail();
  }
  /// Records a sleep that an event ended and that was not short.
  void slept(Nanos duration) {
    if (duration > kLongestSleep || ++sleeps_ < wanted_sleeps_) return;
    reach_ = duration;
    waits_left_ = kWaits;
    short_waits_ = 0;
  }
  /// Records a spin that paid after `spun`.
  /// @return true when the trial has just succeeded
  bool paid(Nanos spun) {
    if (waits_left_ == 0) return false;
    short_waits_ = spun <= kShortWait ? short_waits_ + 1 : 0;
    if (short_waits_ == kShortWaits) {
      wanted_sleeps_ = kFewestSleeps;
      waits_left_ = sleeps_ = 0;
      return true;
    }
    if (--waits_left_ == 0) fail();
    return false;
  }

 private:
  void fail() {
    waits_left_ = sleeps_ = 0;
    wanted_sleeps_ = std::min(2 * wanted_sleeps_, kMostSleeps);
  }

  unsigned wanted_sleeps_ = kFewestSleeps;
  unsigned sleeps_ = 0;
  unsigned waits_left_ = 0;
  unsigned short_waits_ = 0;
  Nanos reach_{};
};

}  // namespace ringsock::runtime
