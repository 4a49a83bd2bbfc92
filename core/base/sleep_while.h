// Short sleeps of a thread that nobody can wake: what it waits for ends in another process, or where no lock may be
// taken.
#pragma once

#include <ctime>

#include "core/base/clock.h"

namespace ringsock {

/// Sleeps so long, less when a signal comes.
inline void sleep_for(Nanos duration) {
  const timespec time{duration.count() / 1'000'000'000, duration.count() % 1'000'000'000};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

/// Sleeps, `step` at a time, while `goes_on()` returns true, for `patience` at most.
template <class Condition>
void sleep_while(Condition goes_on, Nanos patience, Nanos step) {
  const Nanos end = monotonic_now() + patience;
  while (goes_on() && monotonic_now() < end) sleep_for(step);
}

}  // namespace ringsock
