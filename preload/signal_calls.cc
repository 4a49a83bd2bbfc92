// Signal handlers of the application, for which this library stands in: a handler that comes while its thread is inside
// the library waits until the call has ended (core/base/handlers_wait.h). So a handler may use the socket that the
// interrupted call uses, and may leave by siglongjmp(3).
//
// The kernel's flags and mask of a signal are the application's, but for SA_SIGINFO, which is always set, and
// SA_RESETHAND, which is carried out here. Handlers that a program installs by a system call instruction of its own run
// at once, and so do those of faults (SIGSEGV and others), for which nothing stands in.
#include "preload/signal_calls.h"

#include <ucontext.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/base/handlers_wait.h"
#include "core/base/signal_actions.h"
#include "core/base/this_thread.h"
#include "core/base/user_memory.h"
#include "core/runtime/library_call.h"
#include "core/runtime/rcu.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

using Handler = void (*)(int, siginfo_t*, void*);

/// What the application has asked for. Each member is read by handlers at any time.
struct Wanted {
  std::atomic<Handler> handler{nullptr};
  std::atomic<int> flags{0};
};
constinit std::array<Wanted, _NSIG> wanted_of{};

/// Shows the application's handler, in uc_sigmask, what the thread blocks by itself, as the kernel would: the call that
/// lets the signal through (core/runtime/library_call.cc) holds all others, which come afterwards.
void show_own_mask(void* context) {
  HandlersWait& wait = this_thread.handlers;
  if (wait.is_signal_due || !wait.has_due_mask) return;
  const sigset_t all = all_but_faults();
  const SignalBits held = bits_of(&all);
  auto& mask = static_cast<ucontext_t*>(context)->uc_sigmask;
  // Otherwise it has interrupted another handler before its first instruction.
  if ((held & ~bits_of(&mask)) != 0) return;
  wait.has_due_mask = false;
  std::memcpy(&mask, &wait.mask_afterwards, sizeof wait.mask_afterwards);
}

/// Runs in the place of the application's handlers.
void stand_in(int signal, siginfo_t* info, void* context) {
  const Wanted& wanted = wanted_of[static_cast<std::size_t>(signal)];
  const int flags = wanted.flags.load(std::memory_order_relaxed);
  if (runtime::is_inside_library() && runtime::hold_until_call_ends(signal, info, context, (flags & SA_RESTART) != 0))
    return;
  show_own_mask(context);
  const Handler handler = wanted.handler.load(std::memory_order_acquire);
  if ((flags & static_cast<int>(SA_RESETHAND)) != 0) {
    const int saved_errno = errno;
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    real.sigaction(signal, &by_default, nullptr);
    errno = saved_errno;
  }
  if ((flags & SA_SIGINFO) != 0) return handler(signal, info, context);
  using AnyFunction = void (*)();
  reinterpret_cast<sighandler_t>(reinterpret_cast<AnyFunction>(handler))(signal);
}

// ThreadSanitizer calls handlers later, from a place of its own, where the kernel's mask cannot be changed.
#ifdef RINGSOCK_TSAN
constexpr bool kMayStandIn = false;
#else
constexpr bool kMayStandIn = true;
#endif

bool is_stand_in(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &stand_in;
}

/// Turns the kernel's answer into what the application has asked for.
void show_wanted(struct sigaction& action, Handler handler, int flags) {
  if (!is_stand_in(action)) return;
  action.sa_sigaction = handler;
  action.sa_flags = flags;
}

int set_action(int signal, const struct sigaction* action, struct sigaction* old) {
  if (signal <= 0 || signal >= _NSIG) return real.sigaction(signal, action, old);
  Wanted& wanted = wanted_of[static_cast<std::size_t>(signal)];
  const Handler old_handler = wanted.handler.load(std::memory_order_relaxed);
  const int old_flags = wanted.flags.load(std::memory_order_relaxed);
  struct sigaction instead {};
  const bool stands_in =
      kMayStandIn && action != nullptr && !is_fault(signal) && is_handler(*action) && !is_stand_in(*action);
  if (stands_in) {
    instead = *action;
    instead.sa_sigaction = &stand_in;
    instead.sa_flags = (action->sa_flags | SA_SIGINFO) & ~static_cast<int>(SA_RESETHAND);
    wanted.flags.store(action->sa_flags, std::memory_order_relaxed);
    wanted.handler.store(action->sa_sigaction, std::memory_order_release);
    note_stand_in();
  }
  const int answer = real.sigaction(signal, stands_in ? &instead : action, old);
  if (answer != 0 && stands_in) {
    wanted.flags.store(old_flags, std::memory_order_relaxed);
    wanted.handler.store(old_handler, std::memory_order_release);
  }
  if (answer == 0 && old != nullptr) show_wanted(*old, old_handler, old_flags);
  return answer;
}

/// The signals for which siginterrupt(3) has asked that signal(3) does not set SA_RESTART.
constinit std::array<std::atomic<bool>, _NSIG> is_interrupting{};

sighandler_t set_handler(int signal, sighandler_t handler, int flags, bool blocks_itself) {
  struct sigaction action {};
  struct sigaction old {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (handler == SIG_ERR) errno = EINVAL;
  if (blocks_itself && sigaddset(&action.sa_mask, signal) != 0) return SIG_ERR;
  if (handler == SIG_ERR || set_action(signal, &action, &old) != 0) return SIG_ERR;
  return old.sa_handler;
}

sighandler_t bsd_handler(int signal, sighandler_t handler) {
  const bool interrupts = signal > 0 && signal < _NSIG && is_interrupting[static_cast<std::size_t>(signal)].load();
  return set_handler(signal, handler, interrupts ? 0 : SA_RESTART, true);
}
sighandler_t sysv_handler(int signal, sighandler_t handler) {
  return set_handler(signal, handler, static_cast<int>(SA_RESETHAND) | SA_NODEFER, false);
}

/// The structure of rt_sigaction(2), as x86-64 and AArch64 have it.
struct KernelAction {
  Handler handler;
  unsigned long flags;
  void (*restorer)();
  SignalBits mask;
};
#if defined(__x86_64__) || defined(__aarch64__)
constexpr bool kIsLayoutKnown = true;
#else
constexpr bool kIsLayoutKnown = false;
#endif

struct sigaction from_kernels(const KernelAction& action) {
  struct sigaction out {};
  out.sa_sigaction = action.handler;
  out.sa_flags = static_cast<int>(action.flags);
  out.sa_mask = mask_of(action.mask);
  return out;
}
/// libc's functions set SA_RESTORER and the address that goes with it.
KernelAction to_kernels(const struct sigaction& action) {
  constexpr unsigned long kRestorer = 0x04000000;
  return {action.sa_sigaction, static_cast<unsigned>(action.sa_flags) | kRestorer, action.sa_restorer,
          bits_of(&action.sa_mask)};
}

}  // namespace

std::optional<long> sigaction_by_number(const std::array<long, 6>& arguments) {
  const auto signal = static_cast<int>(arguments[0]);
  const auto* const action = reinterpret_cast<const KernelAction*>(arguments[1]);
  auto* const old = reinterpret_cast<KernelAction*>(arguments[2]);
  // libc keeps the signals between the others and SIGRTMIN for itself.
  const bool is_libcs = signal >= __SIGRTMIN && signal < SIGRTMIN;
  const bool is_bad = arguments[3] != sizeof(SignalBits) || (action != nullptr && !are_readable(action)) ||
                      (old != nullptr && !are_writable(old));
  if (!kIsLayoutKnown || !kMayStandIn || is_libcs || is_bad) return std::nullopt;
  const struct sigaction wanted = action != nullptr ? from_kernels(*action) : (struct sigaction){};
  struct sigaction before {};
  if (set_action(signal, action != nullptr ? &wanted : nullptr, &before) != 0) return -1;
  if (old != nullptr) *old = to_kernels(before);
  return 0;
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

extern "C" sighandler_t __sysv_signal(int signal, sighandler_t handler) noexcept;

RS_INTERCEPT int sigaction(int signal, const struct sigaction* action, struct sigaction* old) noexcept {
  return set_action(signal, action, old);
}
RS_INTERCEPT int __sigaction(int signal, const struct sigaction* action, struct sigaction* old) noexcept {
  return set_action(signal, action, old);
}
RS_INTERCEPT sighandler_t signal(int number, sighandler_t handler) noexcept { return bsd_handler(number, handler); }
RS_INTERCEPT sighandler_t bsd_signal(int number, sighandler_t handler) noexcept { return bsd_handler(number, handler); }
RS_INTERCEPT sighandler_t ssignal(int number, sighandler_t handler) noexcept { return bsd_handler(number, handler); }
RS_INTERCEPT sighandler_t sysv_signal(int number, sighandler_t handler) noexcept {
  return sysv_handler(number, handler);
}
RS_INTERCEPT sighandler_t __sysv_signal(int number, sighandler_t handler) noexcept {
  return sysv_handler(number, handler);
}
RS_INTERCEPT int siginterrupt(int number, int interrupts) noexcept {
  struct sigaction action {};
  if (set_action(number, nullptr, &action) != 0) return -1;
  is_interrupting[static_cast<std::size_t>(number)].store(interrupts != 0);
  action.sa_flags = interrupts != 0 ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
  return set_action(number, &action, nullptr);
}
RS_INTERCEPT sighandler_t sigset(int number, sighandler_t handler) noexcept {
  sigset_t own;
  sigset_t before;
  sigemptyset(&own);
  if (sigaddset(&own, number) != 0) return SIG_ERR;
  const bool holds = handler == SIG_HOLD;
  struct sigaction old {};
  if (holds && set_action(number, nullptr, &old) != 0) return SIG_ERR;
  const sighandler_t previous = holds ? old.sa_handler : set_handler(number, handler, 0, false);
  if (previous == SIG_ERR) return SIG_ERR;
  if (::pthread_sigmask(holds ? SIG_BLOCK : SIG_UNBLOCK, &own, &before) != 0) return SIG_ERR;
  return sigismember(&before, number) == 1 ? SIG_HOLD : previous;
}
