#include "libvmacompat/process/signal_handling.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>

namespace ringsock::vma {

namespace {

void set(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags | SA_ONSTACK;
  ::sigaction(signal, &action, nullptr);
}

void on_next_interrupt(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// That there is a handler without SA_RESTART ends the calls; another one follows, so that they still see one.
void on_interrupt(int signal) {
  const int saved_errno = errno;
  set(signal, &on_next_interrupt, 0);
  errno = saved_errno;
}

void on_fault(int signal) {
  constexpr char kTitle[] = " VMA PANIC: segmentation fault; the calls on the stack:\n";
  std::array<void*, 64> calls;
  const int count = ::backtrace(calls.data(), static_cast<int>(calls.size()));
  if (::write(STDERR_FILENO, kTitle, sizeof kTitle - 1) > 0) ::backtrace_symbols_fd(calls.data(), count, STDERR_FILENO);
  // SA_RESETHAND: now it ends the program, once this handler has returned.
  ::raise(signal);
}

void install(int signal, void (*handler)(int), int flags) {
  struct sigaction present {};
  const bool has_none = ::sigaction(signal, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) == 0 &&
                        present.sa_handler == SIG_DFL;
  if (has_none) set(signal, handler, flags);
}

}  // namespace

void install_signal_handlers(const config::VmaConfig& config) {
  if (config.handle_sigintr) install(SIGINT, &on_interrupt, 0);
  if (!config.handle_sigsegv) return;
  // The first call loads a library, which a handler must not do.
  std::array<void*, 1> here;
  ::backtrace(here.data(), static_cast<int>(here.size()));
  install(SIGSEGV, &on_fault, static_cast<int>(SA_RESETHAND));
}

}  // namespace ringsock::vma
