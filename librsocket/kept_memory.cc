#include "librsocket/kept_memory.h"

#include <atomic>

#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

namespace {

constexpr Nanos kInterval = std::chrono::seconds(1);

/// When it is looked next. A child that has no timer of its parent finds that this time is over, and sets its own.
struct KeptMemoryTimer {
  static constexpr ProcessPart kPart = ProcessPart::kept_memory_timer;
  std::atomic<Nanos> due{Nanos::zero()};
};

/// Returns whether the caller is the one that sets the timer for `when`.
bool take_timer(Nanos now, Nanos when) {
  std::atomic<Nanos>& due = process_state<KeptMemoryTimer>().due;
  Nanos before = due.load(std::memory_order_relaxed);
  return before + kInterval <= now && due.compare_exchange_strong(before, when, std::memory_order_relaxed);
}

void look(verbs::Device& device) {
  const Nanos now = monotonic_now();
  process_state<KeptMemoryTimer>().due.store(Nanos::zero(), std::memory_order_relaxed);
  if (device.rc().give_back_sparse(now)) give_back_later(device);
}

}  // namespace

void give_back_later(verbs::Device& device) {
  const Nanos now = monotonic_now();
  const Nanos when = now + kInterval;
  if (!take_timer(now, when)) return;
  // Without a thread it is tried again in a while.
  static_cast<void>(runtime::service_thread().schedule(when, [&device] { look(device); }));
}

}  // namespace ringsock::rs
