#include "core/runtime/spin_policy.h"

namespace ringsock::runtime {

namespace {
constinit std::atomic<Nanos> polling_time{SpinPolicy{}.polling_time};
constinit std::atomic<bool> adaptive{SpinPolicy{}.adaptive};
constinit Contention process_contention;
constinit thread_local SpinHistory thread_history;
}  // namespace

void set_spin_policy(SpinPolicy policy) {
  polling_time.store(policy.polling_time, std::memory_order_relaxed);
  adaptive.store(policy.adaptive, std::memory_order_relaxed);
}

SpinPolicy spin_policy() {
  return {polling_time.load(std::memory_order_relaxed), adaptive.load(std::memory_order_relaxed)};
}

void note_sleep(Nanos duration) { thread_history.slept(duration, spin_policy()); }

Spinner::Spinner(Nanos deadline, HeldSignals& signals, unsigned stride)
    : BasicSpinner(spin_policy(), process_contention, thread_history, deadline, stride, {&signals}) {}

}  // namespace ringsock::runtime
