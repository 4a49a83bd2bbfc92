// Signal handlers of the application wait while their thread is inside the library.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

namespace ringsock {

/// Returns whether the signal reports a program fault. Such signals are never held: they interrupt no wait, and
/// runtimes and sanitizers handle them themselves.
bool is_fault(int signal);
/// Returns what a wait may hold: all signals but faults, SIGKILL and SIGSTOP. libc itself leaves out the two that it
/// uses for pthread_cancel(3) and setuid(2).
sigset_t all_but_faults();

/// A mask as the kernel has it: bit 0 is signal 1. Masks of applications are that long, too.
using SignalBits = std::uint64_t;
SignalBits bits_of(const sigset_t* mask);
sigset_t mask_of(SignalBits bits);

/// What a thread's signals and its calls of the library know of each other. A handler that ran in the middle of a call
/// could use the same socket again, whose locks its own thread holds, or leave by siglongjmp(3), with a watch and a
/// lock left behind. So a preload library stands in for the handlers (preload/signal_calls.cc). A signal that comes
/// while the thread is inside is sent to the thread again and held until the call has ended, and the call ends early:
/// it sleeps no more. Where a call ends, core/runtime/library_call.h lets the signal through.
///
/// Used by the thread and its handlers. It lies in a library that is loaded with the program, because a handler must
/// not allocate memory for it.
struct HandlersWait {
  bool is_signal_due;      ///< a signal is held until the call has ended, together with all other signals
  bool do_all_restart;     ///< the handlers of all signals that are due have SA_RESTART
  bool is_mask_held;       ///< HeldMask holds signals; `own_mask` is what the thread blocks by itself
  bool has_sleeping_mask;  ///< the thread sleeps with a mask of the application's (ppoll(2))
  bool has_due_mask;       ///< a signal that is due was let through by such a mask
  unsigned depth;          ///< how many calls that hold more than a read-side section the thread is inside of
  SignalBits own_mask;
  SignalBits sleeping_mask;
  SignalBits mask_afterwards;  ///< what the thread blocks by itself, once nothing is due any more
  SignalBits due_mask;
};
extern __attribute__((tls_model("initial-exec"))) __thread HandlersWait handlers_wait;

/// Whether a preload library stands in for any handler of this process.
extern std::atomic<bool> has_stand_ins;

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

/// Ends a sleep at once when a signal is due. While it exists, the signals are held, so that none comes between the
/// look and the sleep. Costs nothing where nobody stands in for handlers.
class BeforeSleep {
 public:
  /// @param mask  what the application wants the sleep to block; null: what the thread blocks by itself
  explicit BeforeSleep(const sigset_t* mask);
  BeforeSleep(const BeforeSleep&) = delete;
  BeforeSleep& operator=(const BeforeSleep&) = delete;
  ~BeforeSleep() { handlers_wait.has_sleeping_mask = false; }
  [[nodiscard]] bool is_interrupted() const { return handlers_wait.is_signal_due; }
  /// Returns what ppoll(2) is to block.
  [[nodiscard]] const sigset_t* mask() const { return mask_; }

 private:
  HeldMask held_;
  const sigset_t* mask_;
};

}  // namespace ringsock
