#include "core/runtime/library_call.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "core/base/libc_calls.h"
#include "core/base/rare_calls.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/rcu.h"

namespace ringsock::runtime {

namespace {

bool is_in_section() noexcept {
  return urcu_bp_reader && (rcu_reader_counter().load(std::memory_order_relaxed) & URCU_BP_GP_CTR_NEST_MASK) != 0;
}

/// Sends the signal to the calling thread again, which holds it, with all that the kernel has told of it.
bool send_again(int signal, siginfo_t* info) {
  if (is_known_forbidden(RareCall::send_signal_again)) return false;
  return libc_calls.syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), signal, reinterpret_cast<long>(info), 0,
                            0) == 0;
}

/// Writes down what the thread blocks by itself. A handler's own mask is in `interrupted`, unless the library holds
/// signals, or the handler has interrupted another one that is about to write it down, too.
void note_masks(SignalBits interrupted, SignalBits held) {
  HandlersWait& wait = this_thread.handlers;
  if (!wait.is_signal_due) wait.has_due_mask = false;
  const bool is_all_held = (held & ~interrupted) == 0;
  if (wait.is_mask_held && is_all_held) {
    wait.mask_afterwards = wait.own_mask;
  } else if (!wait.is_signal_due || !is_all_held) {
    wait.mask_afterwards = interrupted;
  }
  if (!wait.has_sleeping_mask) return;
  wait.due_mask = wait.sleeping_mask;
  wait.has_due_mask = true;
}

}  // namespace

bool is_inside_library() noexcept { return this_thread.handlers.depth != 0 || is_in_section(); }

bool hold_until_call_ends(int signal, siginfo_t* info, void* context, bool restarts) noexcept {
  const int saved_errno = errno;
  const sigset_t held = all_but_faults();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &held, &before);
  const bool is_sent = send_again(signal, info);
  if (is_sent) {
    auto& context_mask = static_cast<ucontext_t*>(context)->uc_sigmask;
    HandlersWait& wait = this_thread.handlers;
    const SignalBits interrupted = bits_of(&context_mask);
    note_masks(interrupted, bits_of(&held));
    wait.do_all_restart = restarts && (wait.do_all_restart || !wait.is_signal_due);
    wait.due_signals = (wait.is_signal_due ? wait.due_signals : 0) | SignalBits{1} << (signal - 1);
    wait.is_signal_due = wait.is_due = true;
    const SignalBits afterwards = interrupted | bits_of(&held);
    std::memcpy(&context_mask, &afterwards, sizeof afterwards);  // the kernel's mask is that long
  } else {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  errno = saved_errno;
  return is_sent;
}

namespace {

bool let_signals_through(bool has_failed) {
  HandlersWait& wait = this_thread.handlers;
  const bool is_repeated = has_failed && errno == ERESTART && wait.do_all_restart;
  const int error = has_failed && errno == ERESTART ? EINTR : errno;
  const sigset_t mask = mask_of(wait.mask_afterwards);
  const sigset_t due_mask = mask_of(wait.due_mask);
  const bool has_due_mask = wait.has_due_mask;
  wait.is_signal_due = false;
  // All signals are held until here, so nothing of this thread changes in between.
  constexpr timespec kAtOnce{};
  if (has_due_mask) libc_calls.ppoll(nullptr, 0, &kAtOnce, &due_mask);
  wait.has_due_mask = false;
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  errno = error;
  return is_repeated;
}

}  // namespace

bool run_what_is_due(bool has_failed) {
  if (is_inside_library()) return false;
  HandlersWait& wait = this_thread.handlers;
  DueCalls& due = this_thread.due;
  const bool was_resumed = due.is_resumed;
  wait.is_due = due.is_resumed = false;
  const bool has_early_end = has_failed && due.count != 0 && (errno == EINTR || errno == ERESTART);
  const bool has_deadline = std::exchange(due.has_deadline, false);
  const std::int64_t deadline = due.deadline;
  const bool has_signals = wait.is_signal_due;
  bool is_repeated = has_signals && let_signals_through(has_failed);
  if (due.count != 0) {
    const bool is_awaited = run_due_calls() && has_failed && errno == EAGAIN && !was_resumed;
    is_repeated = is_repeated || ((has_early_end || is_awaited) && !has_signals);
  }
  if (is_repeated) {
    errno = 0;                            // programs look at it after calls that have succeeded
    wait.is_due = due.is_resumed = true;  // until the repeated call has ended
    due.has_deadline = has_deadline;
    due.deadline = deadline;
  }
  return is_repeated;
}

OutsideLibrary::OutsideLibrary() : depth_(std::exchange(this_thread.handlers.depth, 0)) { call_ends(false); }

}  // namespace ringsock::runtime
