// Signals that come while a call spins in user space, where the kernel interrupts nothing.
#pragma once

#include <csignal>

#include "core/base/clock.h"

namespace ringsock::runtime {

/// Signals for mistakes of the program: never held, they interrupt no wait, and runtimes and sanitizers handle them in
/// their own way.
bool is_fault(int signal);

/// The signals of one call that waits. One that comes while the call sleeps in ppoll(2) interrupts it; one that comes
/// while it spins would only run its handler, and the call would sleep on. So a spin that lasts blocks signals, looks
/// for pending ones, and ends when there is one: the sleep that follows, with mask(), lets it through, as it does for
/// all others. Handlers thus run in ppoll(2), with the mask that they would have in the kernel's own call, and may
/// longjmp(3) out of it.
///
/// A short spin costs no system call. What comes before signals are held counts as come before the call.
/// A signal for the process goes to a thread that does not hold it, if there is one. Used by one thread.
class HeldSignals {
 public:
  /// How long a spin may last before it holds signals, and how often it looks for them then. Holding costs two system
  /// calls, looking one, of 0.2 us each.
  static constexpr Nanos kFreeSpin{50'000};
  static constexpr Nanos kInterval{20'000};

  /// @param mask  the signal mask that the caller wants while the call sleeps; null: the thread's
  explicit HeldSignals(const sigset_t* mask) : mask_(mask) {}
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    if (are_held_) release();
  }

  /// Asked by a spin that has lasted `spun` at `now`: whether a signal is waiting for the sleep to let it through.
  bool interrupt(Nanos spun, Nanos now) {
    if (are_held_ ? now < next_look_ : spun < kFreeSpin) return false;
    return look(now);
  }
  /// The mask to sleep with, as ppoll(2) takes it: null is the thread's.
  [[nodiscard]] const sigset_t* mask() const { return mask_; }

 private:
  bool look(Nanos now);
  void hold();
  void release();

  const sigset_t* mask_;
  Nanos next_look_{};
  bool are_held_ = false;
  sigset_t before_;  ///< the thread's own mask while they are held
};

}  // namespace ringsock::runtime
