#include "core/poll/spin_policy.h"

#include <cstddef>

#include "core/poll/busy_turns.h"
#include "core/poll/process_waits.h"
#include "core/poll/thread_waits.h"

namespace ringsock::runtime {

namespace {

[[gnu::constructor]] void start() { process_waits(); }

constexpr std::size_t index_of(WaitFor what) { return static_cast<std::size_t>(what); }

SpinHistory& history_of(WaitFor what) { return thread_waits.spins[what == WaitFor::readiness ? 1 : 0]; }

}  // namespace

void set_spin_policy(WaitFor what, SpinPolicy policy) {
  SharedSpinPolicy& shared = process_waits().policies[index_of(what)];
  shared.polling_time.store(policy.polling_time, std::memory_order_relaxed);
  shared.adaptive.store(policy.adaptive, std::memory_order_relaxed);
  shared.attempts_per_yield.store(policy.attempts_per_yield, std::memory_order_relaxed);
}

void set_spin_policy(SpinPolicy policy) {
  set_spin_policy(WaitFor::operation, policy);
  set_spin_policy(WaitFor::readiness, policy);
  set_spin_policy(WaitFor::first, policy);
}

SpinPolicy spin_policy(WaitFor what) {
  const SharedSpinPolicy& shared = process_waits().policies[index_of(what)];
  return {shared.polling_time.load(std::memory_order_relaxed), shared.adaptive.load(std::memory_order_relaxed),
          shared.attempts_per_yield.load(std::memory_order_relaxed)};
}

KernelLooks& kernel_looks() { return process_waits().kernel_looks; }

void note_connection() {
  for (SpinHistory& spins : thread_waits.spins) spins.note_connection();
}

void note_sleep(WaitFor what, Nanos duration) { history_of(what).slept(duration, spin_policy(what)); }

void note_vain_sleep(WaitFor what, Nanos duration) { history_of(what).slept_in_vain(duration); }

bool offer_cpu() {
  Contention& contention = process_waits().contention;
  const Nanos begun = monotonic_now();
  if (contention.is_hogged(begun)) return false;
  ::sched_yield();
  const Nanos ended = monotonic_now();
  contention.note_yield(begun, ended);
  return contention.is_contended(ended);
}

Spinner::Spinner(WaitFor what, Nanos deadline, HeldSignals& signals, unsigned stride)
    : BasicSpinner(spin_policy(what), process_waits().contention, history_of(what), deadline, stride, {&signals}) {}

}  // namespace ringsock::runtime
