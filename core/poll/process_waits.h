// What this room keeps for the process.
#pragma once

#include <array>
#include <atomic>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/poll/kernel_looks.h"
#include "core/poll/spin_policy.h"
#include "core/poll/thread_waits.h"
#include "core/poll/wait_tally.h"

namespace ringsock::runtime {

/// A SpinPolicy that threads read while another one sets it.
struct SharedSpinPolicy {
  std::atomic<Nanos> polling_time{SpinPolicy{}.polling_time};
  std::atomic<bool> adaptive{SpinPolicy{}.adaptive};
  std::atomic<unsigned> attempts_per_yield{SpinPolicy{}.attempts_per_yield};
};

struct ProcessWaits {
  static constexpr ProcessPart kPart = ProcessPart::waits;
  std::array<SharedSpinPolicy, kWaitKinds> policies;  ///< by WaitFor
  Contention contention;
  KernelLooks kernel_looks;
  /// They are never destroyed. Null: calls are not counted.
  std::atomic<WaitCounters*> counters{nullptr};
  std::atomic<bool> measures_polling{false};  ///< where calls are counted
  // These locks guard no data. They keep two threads from wrapping one epoll file, or adding two sets to each other, at
  // the same time.
  Mutex adopting;
  Mutex nesting;
};
inline ProcessWaits& process_waits() { return process_state<ProcessWaits>(); }

/// Carries a call out, and counts it where the process counts calls.
template <class Wait>
Result<int> counted_wait(int slot, Wait wait) {
  WaitCounters* const counters = process_waits().counters.load(std::memory_order_acquire);
  if (counters == nullptr || slot == WaitCounters::kNowhere) [[likely]]
    return wait();
  thread_waits.tally = {};
  const bool is_measured = process_waits().measures_polling.load(std::memory_order_relaxed);
  const Nanos begun = is_measured ? monotonic_now() : Nanos::zero();
  const Result<int> ready = wait();
  WaitTally& tally = thread_waits.tally;
  if (is_measured) tally.polling_percent = thread_waits.polling.add(slot, begun, monotonic_now(), tally.slept_for);
  counters->count(slot, ready, tally);
  return ready;
}

}  // namespace ringsock::runtime
