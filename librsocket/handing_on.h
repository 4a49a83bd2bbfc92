// A connection that a thread hands on to a process which it makes, for another thread that closes the connection
// meanwhile.
#pragma once

#include <atomic>
#include <ctime>

#include "core/base/clock.h"

namespace ringsock::rs {

/// The process that is made has its copy of the connection only if the connection was open at the fork. So a close
/// waits for the end of the work. begin() is called under setup_lock while the connection is open
/// (Endpoint::is_closed()); the closing thread takes that lock between noting the close and wait(), so no work begins
/// behind it.
class HandingOn {
 public:
  void begin() noexcept { goes_on_.store(true, std::memory_order_release); }
  void end() noexcept { goes_on_.store(false, std::memory_order_release); }

  /// Returns when the work has ended, or after kPatience, when the machine hardly gives it any time. Threads: any but
  /// the one that hands on; without locks of the connection, which the fork needs.
  void wait() const noexcept {
    constexpr Nanos kPatience = std::chrono::seconds(5);
    if (!goes_on_.load(std::memory_order_acquire)) [[likely]]
      return;
    const Nanos end = monotonic_now() + kPatience;
    while (goes_on_.load(std::memory_order_acquire) && monotonic_now() < end) {
      constexpr timespec kPause{0, 200'000};
      ::clock_nanosleep(CLOCK_MONOTONIC, 0, &kPause, nullptr);
    }
  }

 private:
  std::atomic<bool> goes_on_{false};
};

}  // namespace ringsock::rs
