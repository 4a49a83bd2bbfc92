// What calls that wait for several descriptors find, for vma_stats(8).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/result.h"
#include "core/runtime/vma_statistics.h"

namespace ringsock::runtime {

/// Of the calling thread's poll(2), select(2) or epoll_wait(2), while it goes on.
struct WaitTally {
  int from_endpoints = 0;  ///< ready at the last look
  bool slept = false;
};
extern thread_local constinit WaitTally wait_tally __attribute__((tls_model("initial-exec")));

/// @param slot  null: nobody counts
template <class Wait>
Result<int> counted_wait(VmaIomuxSlot* slot, Wait wait) {
  if (slot == nullptr) [[likely]]
    return wait();
  wait_tally = {};
  const Result<int> ready = wait();
  const WaitTally tally = wait_tally;
  if (tally.slept) add_relaxed((*slot)[VmaIomuxCount::poll_misses], 1);
  if (!ready) {
    add_relaxed((*slot)[VmaIomuxCount::errors], 1);
  } else if (*ready == 0) {
    add_relaxed((*slot)[VmaIomuxCount::timeouts], 1);
  } else {
    // select(2) counts a descriptor once for each set.
    const int from_endpoints = std::min(*ready, tally.from_endpoints);
    add_relaxed((*slot)[VmaIomuxCount::offloaded_ready], static_cast<std::uint64_t>(from_endpoints));
    add_relaxed((*slot)[VmaIomuxCount::os_ready], static_cast<std::uint64_t>(*ready - from_endpoints));
    if (!tally.slept && from_endpoints > 0) add_relaxed((*slot)[VmaIomuxCount::poll_hits], 1);
  }
  return ready;
}

}  // namespace ringsock::runtime
