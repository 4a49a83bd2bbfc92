// Signal handlers of the application wait while their thread is inside the library.
#pragma once

#include <csignal>

#include "core/base/this_thread.h"

namespace ringsock {

/// Returns whether the signal reports a program fault. Such signals are never held: they interrupt no wait, and
/// runtimes and sanitizers handle them themselves.
bool is_fault(int signal);
/// Returns what a wait may hold: all signals but faults, SIGKILL and SIGSTOP. libc itself leaves out the two that it
/// uses for pthread_cancel(3) and setuid(2).
sigset_t all_but_faults();

SignalBits bits_of(const sigset_t* mask);
sigset_t mask_of(SignalBits bits);

/// Notes that a preload library stands in for a handler of this process.
void note_stand_in();

/// Returns whether a wait ends at once: a signal or a function of the application is due.
/// @param mask  what the application wants the wait to block: such a signal stays pending until the call has ended;
/// null: what the thread blocks by itself
inline bool ends_wait(const sigset_t* mask) {
  const HandlersWait& wait = this_thread.handlers;
  if (this_thread.due.count != 0) return true;
  return wait.is_signal_due && (mask == nullptr || (wait.due_signals & ~bits_of(mask)) != 0);
}

/// Holds all signals but faults while it exists, unless they are held already. Used by one thread.
class HeldMask {
 public:
  HeldMask() = default;
  HeldMask(const HeldMask&) = delete;
  HeldMask& operator=(const HeldMask&) = delete;
  ~HeldMask() {
    if (holds_) release();
  }
  void hold();
  /// Returns what the thread blocks by itself. Call hold() before.
  [[nodiscard]] const sigset_t& own() const { return own_; }

 private:
  void release() const;

  bool holds_ = false;
  bool is_outermost_ = false;
  bool was_held_ = false;  ///< `is_mask_held` and `own_mask` before
  SignalBits mask_before_ = 0;
  sigset_t own_;
};

/// Ends a sleep at once when a signal or a function of the application is due. While it exists, the signals are held,
/// so that none comes between the look and the sleep. Costs nothing where nobody stands in for handlers.
class BeforeSleep {
 public:
  /// @param mask  what the application wants the sleep to block; null: what the thread blocks by itself
  explicit BeforeSleep(const sigset_t* mask);
  BeforeSleep(const BeforeSleep&) = delete;
  BeforeSleep& operator=(const BeforeSleep&) = delete;
  ~BeforeSleep() { this_thread.handlers.has_sleeping_mask = false; }
  [[nodiscard]] bool is_interrupted() const { return ends_wait(applications_); }
  /// Returns what ppoll(2) is to block.
  [[nodiscard]] const sigset_t* mask() const { return mask_; }

 private:
  HeldMask held_;
  const sigset_t* applications_;
  const sigset_t* mask_;
};

}  // namespace ringsock
