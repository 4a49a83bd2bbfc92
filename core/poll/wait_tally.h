// The results of calls that wait for several descriptors, for statistics.
#pragma once

#include "core/base/result.h"

namespace ringsock::runtime {

/// The tally of a call.
struct WaitTally {
  int from_endpoints = 0;  ///< ready at the last look
  bool slept = false;
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
