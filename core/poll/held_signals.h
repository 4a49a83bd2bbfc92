// Handles signals that arrive while a call spins in user space, where the kernel cannot interrupt it.
#pragma once

#include <csignal>

#include "core/base/clock.h"
#include "core/base/handlers_wait.h"

namespace ringsock::runtime {

/// The signals of one waiting call. A signal that arrives while the call sleeps in ppoll(2) interrupts it; one that
/// arrives while it spins would only run its handler, and the call would go on. So a long spin blocks signals, looks
/// for pending ones, and ends when there is one. The sleep that follows, with mask(), lets it through. Handlers thus
/// run in ppoll(2), with the mask that they would have in the kernel's own call, unless they wait until the call has
/// ended (core/base/handlers_wait.h).
///
/// A short spin costs no system call: a signal that arrives before signals are held counts as having arrived before the
/// call. The kernel delivers a signal for the process to a thread that does not hold it, if there is one. Used by one
/// thread.
class HeldSignals {
 public:
  /// The time that a spin may last before it holds signals, and then the interval of looks for them. Holding costs two
  /// system calls, looking one, of 0.2 us each.
  static constexpr Nanos kFreeSpin{50'000};
  static constexpr Nanos kInterval{20'000};

  /// @param mask  the signal mask that the caller wants while the call sleeps; null: the thread's
  explicit HeldSignals(const sigset_t* mask) : mask_(mask) {}
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// Called by a spin that has lasted `spun` at `now`. Returns whether a signal is pending, which the sleep will let
  /// through.
  bool interrupt(Nanos spun, Nanos now) {
    if (ends_wait(mask_)) return true;
    if (are_held_ ? now < next_look_ : spun < kFreeSpin) return false;
    return look(now);
  }
  /// Returns the mask to sleep with, as ppoll(2) takes it: null stands for the thread's own mask.
  [[nodiscard]] const sigset_t* mask() const { return mask_; }

 private:
  bool look(Nanos now);
  void hold();

  const sigset_t* mask_;
  Nanos next_look_{};
  bool are_held_ = false;
  HeldMask held_;
};

}  // namespace ringsock::runtime
