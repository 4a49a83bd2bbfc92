// A connection that a thread hands on to a process which it makes, for another thread that closes the connection
// meanwhile.
#pragma once

#include <atomic>
#include <chrono>

#include "core/base/clock.h"
#include "core/base/sleep_while.h"

namespace ringsock::rs {

/// The process that is made has its copy of the connection only if the connection was open at the fork. So a close
/// waits for the end of the work. begin() is called under setup_lock while the connection is open
/// (Endpoint::is_closed()); the closing thread takes that lock between noting the close and wait(), so no work begins
/// behind it.
class HandingOn {
 public:
  void begin() noexcept { goes_on_.store(true, std::memory_order_release); }
  void end() noexcept { goes_on_.store(false, std::memory_order_release); }

  [[nodiscard]] bool goes_on() const noexcept { return goes_on_.load(std::memory_order_acquire); }

  /// Returns when the work has ended, or after kPatience, when the machine hardly gives it any time. Threads: any but
  /// the one that hands on; without locks of the connection, which the fork needs.
  void wait() const noexcept {
    constexpr Nanos kPatience = std::chrono::seconds(5), kStep = std::chrono::microseconds(200);
    if (!goes_on()) [[likely]]
      return;
    sleep_while([this] { return goes_on(); }, kPatience, kStep);
  }

 private:
  std::atomic<bool> goes_on_{false};
};

}  // namespace ringsock::rs
