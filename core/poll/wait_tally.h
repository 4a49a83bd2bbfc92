// The results of calls that wait for several descriptors, for statistics.
#pragma once

#include <atomic>

#include "core/base/result.h"

namespace ringsock::runtime {

/// The tally of the calling thread's current poll(2), select(2) or epoll_wait(2).
struct WaitTally {
  int from_endpoints = 0;  ///< ready at the last look
  bool slept = false;
};
extern thread_local constinit WaitTally wait_tally __attribute__((tls_model("initial-exec")));

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

/// The counters of this process, never destroyed. Null: calls are not counted.
extern constinit std::atomic<WaitCounters*> wait_counters;

template <class Wait>
Result<int> counted_wait(int slot, Wait wait) {
  WaitCounters* const counters = wait_counters.load(std::memory_order_acquire);
  if (counters == nullptr || slot == WaitCounters::kNowhere) [[likely]]
    return wait();
  wait_tally = {};
  const Result<int> ready = wait();
  counters->count(slot, ready, wait_tally);
  return ready;
}

}  // namespace ringsock::runtime
