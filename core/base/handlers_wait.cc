#include "core/base/handlers_wait.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/base/process_state.h"

namespace ringsock {

namespace {
constexpr std::array kFaults{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};

struct StandIns {
  static constexpr ProcessPart kPart = ProcessPart::stand_ins;
  std::atomic<bool> is_any{false};
};
[[gnu::constructor]] void start() { process_state<StandIns>(); }
}  // namespace

void note_stand_in() { process_state<StandIns>().is_any.store(true, std::memory_order_relaxed); }

bool is_fault(int signal) { return std::find(kFaults.begin(), kFaults.end(), signal) != kFaults.end(); }

sigset_t all_but_faults() {
  sigset_t out;
  sigfillset(&out);
  for (const int fault : kFaults) sigdelset(&out, fault);
  // The kernel leaves these out, and masks are compared.
  for (const int unblockable : {SIGKILL, SIGSTOP}) sigdelset(&out, unblockable);
  return out;
}

SignalBits bits_of(const sigset_t* mask) {
  SignalBits out = 0;
  std::memcpy(&out, mask, sizeof out);
  return out;
}

sigset_t mask_of(SignalBits bits) {
  sigset_t out;
  sigemptyset(&out);
  std::memcpy(&out, &bits, sizeof bits);
  return out;
}

void HeldMask::hold() {
  if (holds_) return;
  holds_ = true;
  const sigset_t held = all_but_faults();
  ::pthread_sigmask(SIG_BLOCK, &held, &own_);
  const bool was_complete = (bits_of(&held) & ~bits_of(&own_)) == 0;
  // A handler that nobody stands in for may have left the holder by a jump.
  is_outermost_ = !this_thread.handlers.is_mask_held || !was_complete;
  if (is_outermost_) {
    // All signals are held already while one is due.
    if (this_thread.handlers.is_signal_due && was_complete) own_ = mask_of(this_thread.handlers.mask_afterwards);
    was_held_ = this_thread.handlers.is_mask_held;
    mask_before_ = this_thread.handlers.own_mask;
    this_thread.handlers.own_mask = bits_of(&own_);
    this_thread.handlers.is_mask_held = true;
  } else {
    own_ = mask_of(this_thread.handlers.own_mask);
  }
}

void HeldMask::release() const {
  if (!is_outermost_) return;
  this_thread.handlers.is_mask_held = was_held_;
  this_thread.handlers.own_mask = mask_before_;
  // A signal that is due would only be held again.
  if (!this_thread.handlers.is_signal_due) ::pthread_sigmask(SIG_SETMASK, &own_, nullptr);
}

BeforeSleep::BeforeSleep(const sigset_t* mask) : applications_(mask), mask_(mask) {
  if (!process_state<StandIns>().is_any.load(std::memory_order_relaxed)) return;
  held_.hold();
  if (mask == nullptr) mask_ = &held_.own();
  this_thread.handlers.sleeping_mask = bits_of(mask_);
  this_thread.handlers.has_sleeping_mask = true;
}

}  // namespace ringsock
