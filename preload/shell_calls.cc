// Commands that a shell executes: system(3), popen(3). libc spawns the shell by calls inside libc, which pass none of
// the connections on that the shell inherits. Where there are such connections, these functions do libc's work.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/no_cancellation.h"
#include "core/base/unique_fd.h"
#include "preload/route.h"
#include "preload/spawn_calls.h"

namespace ringsock::preload {
namespace {

/// Executes the command as posix_spawn(3) does. Returns an errno value.
int spawn_shell(pid_t& process, const char* command, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes) {
  const std::array<const char*, 4> arguments{"sh", "-c", command, nullptr};
  return ::posix_spawn(&process, "/bin/sh", actions, attributes, const_cast<char* const*>(arguments.data()), environ);
}

/// Waits for the end of a shell. Returns its status, or -1 and errno.
int status_of(pid_t shell) {
  int status = 0;
  pid_t ended = -1;
  do {
    ended = real.wait4(shell, &status, 0, nullptr);
  } while (ended < 0 && errno == EINTR);
  return ended < 0 ? -1 : status;
}

// -- system(3)

/// SIGINT and SIGQUIT, which the process ignores while a thread waits for a shell.
class Interrupts {
 public:
  static constexpr ProcessPart kPart = ProcessPart::shell_interrupts;
  void ignore() {
    const std::lock_guard guard(lock_);
    if (waiting_++ > 0) return;
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    for (std::size_t i = 0; i < kSignals.size(); ++i) real.sigaction(kSignals[i], &ignored, &before_[i]);
  }
  void restore() {
    const std::lock_guard guard(lock_);
    if (--waiting_ > 0) return;
    for (std::size_t i = 0; i < kSignals.size(); ++i) real.sigaction(kSignals[i], &before_[i], nullptr);
  }
  /// Returns those that the shell does not ignore.
  sigset_t shells() {
    const std::lock_guard guard(lock_);
    sigset_t set;
    sigemptyset(&set);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (before_[i].sa_handler != SIG_IGN) sigaddset(&set, kSignals[i]);
    }
    return set;
  }

  void stay_whole_in_forks() { hold_across_fork(lock_); }

 private:
  static constexpr std::array kSignals{SIGINT, SIGQUIT};
  Mutex lock_;
  int waiting_ = 0;
  std::array<struct sigaction, kSignals.size()> before_{};
};

Interrupts& interrupts() { return process_state<Interrupts>(); }

/// A shell that runs a command. Signals are as system(3) says while it exists.
class WaitedShell {
 public:
  WaitedShell() {
    interrupts().ignore();
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child_signal, &mask_);
  }
  WaitedShell(const WaitedShell&) = delete;
  WaitedShell& operator=(const WaitedShell&) = delete;
  /// A thread that is cancelled kills the shell, as libc's does.
  ~WaitedShell() {
    if (process_ > 0) {
      const NoCancellation hold;
      ::kill(process_, SIGKILL);
      static_cast<void>(status_of(process_));
    }
    interrupts().restore();
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

  /// Returns the status of the shell, or -1 and errno.
  int run(const char* command) {
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    const sigset_t defaults = interrupts().shells();
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setsigmask(&attributes, &mask_);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    const int error = spawn_shell(process_, command, nullptr, &attributes);
    ::posix_spawnattr_destroy(&attributes);
    constexpr int kNotExecuted = 127 << 8;
    if (error != 0) {
      process_ = 0;
      errno = error;
      return error == EAGAIN || error == ENOMEM ? -1 : kNotExecuted;
    }
    const int status = status_of(process_);
    process_ = 0;
    return status;
  }

 private:
  pid_t process_ = 0;
  sigset_t mask_{};
};

// -- popen(3)

/// The shells of streams that this library has opened.
class PipedShells {
 public:
  static constexpr ProcessPart kPart = ProcessPart::piped_shells;
  void add(FILE* stream, pid_t shell) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    shells_[stream] = shell;
  }
  /// Returns the shell and forgets it; 0: the stream is libc's.
  pid_t take(FILE* stream) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    const auto found = shells_.find(stream);
    if (found == shells_.end()) return 0;
    const pid_t shell = found->second;
    shells_.erase(found);
    return shell;
  }

  void stay_whole_in_forks() { hold_across_fork(lock_); }

 private:
  Mutex lock_;
  std::map<FILE*, pid_t> shells_;
};

PipedShells& piped_shells() { return process_state<PipedShells>(); }

[[gnu::constructor]] void start() {
  interrupts().stay_whole_in_forks();
  piped_shells().stay_whole_in_forks();
}

/// Returns a stream from or to the shell, or null and errno. Its descriptor is close-on-exec, so that shells of later
/// calls do not have it.
FILE* open_pipe(const char* command, bool reads) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  UniqueFd ours(ends[reads ? 0 : 1]);
  const UniqueFd shells(ends[reads ? 1 : 0]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  pid_t process = 0;
  int error = ::posix_spawn_file_actions_adddup2(&actions, shells.get(), reads ? STDOUT_FILENO : STDIN_FILENO);
  FILE* const stream = error == 0 ? real.fdopen(ours.get(), reads ? "re" : "we") : nullptr;
  if (stream != nullptr) {
    static_cast<void>(ours.release());
    error = spawn_shell(process, command, &actions, nullptr);
    if (error == 0) piped_shells().add(stream, process);
  } else if (error == 0) {
    error = errno;
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return stream;
  if (stream != nullptr) std::fclose(stream);
  errno = error;
  return nullptr;
}

bool is_pipe_mode(const char* mode) {
  return mode != nullptr && std::strspn(mode, "rwe") == std::strlen(mode) &&
         (std::strchr(mode, 'r') != nullptr) != (std::strchr(mode, 'w') != nullptr);
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int system(const char* command) {
  if (command == nullptr || !spawned_inherit_connections()) return real.system(command);
  return WaitedShell().run(command);
}

RS_INTERCEPT FILE* popen(const char* command, const char* mode) try {
  if (command != nullptr && is_pipe_mode(mode) && spawned_inherit_connections())
    return open_pipe(command, std::strchr(mode, 'r') != nullptr);
  FILE* const stream = real.popen(command, mode);
  // The program may have closed a stream of this library by fclose(3).
  if (stream != nullptr) static_cast<void>(piped_shells().take(stream));
  return stream;
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return nullptr;
}
RS_INTERCEPT int pclose(FILE* stream) {
  const pid_t shell = stream != nullptr ? piped_shells().take(stream) : 0;
  if (shell == 0) return real.pclose(stream);
  std::fclose(stream);
  return status_of(shell);
}
