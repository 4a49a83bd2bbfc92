// Processes: what happens to endpoints when a process is made, executes a program, or ends.
#include <spawn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/runtime/fork_registry.h"
#include "core/statistics/statistics.h"
#include "preload/clone_calls.h"
#include "preload/pass_descriptors.h"
#include "preload/process_ends.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

/// Tells the endpoints that this process does not use them any more. May be called in signal handlers.
void leave_endpoints() {
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_ends(); });
}

/// Returns false, with errno, when the program would miss a connection that is meant for it.
bool prepare_to_execute() {
  const LibraryCall no_handlers;
  const int saved_errno = errno;
  try {
    for (const runtime::Ref& endpoint : runtime::fork_registry().endpoints()) endpoint->before_exec();
    if (Status prepared = hand_overs().prepare_exec(); !prepared) {
      errno = prepared.error().code;
      return false;
    }
  } catch (const std::bad_alloc&) {
  }
  hand_overs().finish_answers();
  leave_endpoints();
  errno = saved_errno;
  return true;
}

/// Carries out an exec call. Returns when it failed.
int execute(auto libcs) {
  if (runtime::fork_registry().is_empty()) return libcs();
  if (!prepare_to_execute()) return -1;
  // The program that is executed inherits the mask, so no signal is held here.
  const int answer = libcs();
  const LibraryCall no_handlers;
  const int error = errno;
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_goes_on(); });
  hand_overs().answer_again();
  errno = error;
  return answer;
}

/// A path that cannot be executed needs no preparation.
int execute_path(const char* path, auto libcs) {
  return path == nullptr || ::access(path, X_OK) != 0 ? libcs() : execute(libcs);
}

/// The arguments of execl(3), execlp(3) and execle(3); reads them up to the null pointer.
class ArgumentList {
 public:
  ArgumentList(const char* first, va_list& rest) {
    arguments_.push_back(const_cast<char*>(first));
    while (arguments_.back() != nullptr) arguments_.push_back(va_arg(rest, char*));
  }
  char* const* get() const { return arguments_.data(); }

 private:
  std::vector<char*> arguments_;
};

/// The descriptors of endpoints that the file actions of posix_spawn(3) duplicate. libc does not show what is in them.
class SpawnActions {
 public:
  static constexpr ProcessPart kPart = ProcessPart::spawn_actions;
  void add(const posix_spawn_file_actions_t* actions, int fd) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    numbers_[actions].push_back(fd);
  }
  void forget(const posix_spawn_file_actions_t* actions) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    numbers_.erase(actions);
  }
  std::vector<int> find(const posix_spawn_file_actions_t* actions) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    const auto found = numbers_.find(actions);
    return found == numbers_.end() ? std::vector<int>{} : found->second;
  }

  void stay_whole_in_forks() { hold_across_fork(lock_); }

 private:
  Mutex lock_;
  std::map<const posix_spawn_file_actions_t*, std::vector<int>> numbers_;
};

SpawnActions& spawn_actions() { return process_state<SpawnActions>(); }
[[gnu::constructor]] void start() { spawn_actions().stay_whole_in_forks(); }

int spawn(const posix_spawn_file_actions_t* actions, auto libcs) {
  if (actions == nullptr || runtime::fork_registry().is_empty()) return libcs();
  const std::vector<int> numbers = spawn_actions().find(actions);
  return numbers.empty() ? libcs() : spawn_with(numbers, libcs);
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

extern "C" {

/// Returns the function to which vfork() jumps: fork() when the child must not share the memory.
__attribute__((visibility("hidden"), used)) pid_t (*ringsock_vfork_target())() {
  return may_share_memory() ? real.vfork : &::fork;
}

}  // extern "C"

// libc's vfork() returns twice to its caller's frame, so it must be jumped to.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl vfork
  .type vfork, @function
vfork:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call ringsock_vfork_target
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size vfork, . - vfork
  .globl __vfork
  .set __vfork, vfork
)");
#else
RS_INTERCEPT pid_t vfork() noexcept { return ::fork(); }
RS_INTERCEPT pid_t __vfork() { return ::fork(); }
#endif

namespace ringsock::preload {

void process_ends_at_once() noexcept {
  // No handler runs any more, unless this is a child that shares its parent's memory.
  const runtime::InsideLibrary no_handlers;
  hand_overs().finish_answers();
  leave_endpoints();
  runtime::process_statistics.at_exit();
}

namespace {
/// Called before the handlers that the program registers, so this one runs last.
[[gnu::constructor]] void have_quick_exit_told() {
  std::at_quick_exit([] { process_ends_at_once(); });
}
}  // namespace

}  // namespace ringsock::preload

RS_INTERCEPT void _exit(int status) {
  process_ends_at_once();
  real._exit(status);
  __builtin_unreachable();
}
RS_INTERCEPT void _Exit(int status) noexcept { ::_exit(status); }

RS_INTERCEPT int execve(const char* path, char* const arguments[], char* const environment[]) noexcept {
  return execute_path(path, [=] { return real.execve(path, arguments, environment); });
}
RS_INTERCEPT int execv(const char* path, char* const arguments[]) noexcept {
  return execute_path(path, [=] { return real.execve(path, arguments, environ); });
}
RS_INTERCEPT int execvp(const char* file, char* const arguments[]) noexcept {
  return execute([=] { return real.execvpe(file, arguments, environ); });
}
RS_INTERCEPT int execvpe(const char* file, char* const arguments[], char* const environment[]) noexcept {
  return execute([=] { return real.execvpe(file, arguments, environment); });
}
RS_INTERCEPT int fexecve(int fd, char* const arguments[], char* const environment[]) noexcept {
  return execute([=] { return real.fexecve(fd, arguments, environment); });
}
RS_INTERCEPT int execveat(int directory, const char* path, char* const arguments[], char* const environment[],
                          int flags) noexcept {
  return execute([=] { return real.execveat(directory, path, arguments, environment, flags); });
}

RS_INTERCEPT int execl(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const ArgumentList arguments(first, rest);
  va_end(rest);
  return ::execve(path, arguments.get(), environ);
}
RS_INTERCEPT int execlp(const char* file, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const ArgumentList arguments(first, rest);
  va_end(rest);
  return ::execvpe(file, arguments.get(), environ);
}
RS_INTERCEPT int execle(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const ArgumentList arguments(first, rest);
  char* const* const environment = va_arg(rest, char* const*);
  va_end(rest);
  return ::execve(path, arguments.get(), environment);
}

RS_INTERCEPT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd, int to) noexcept {
  const int answer = real.posix_spawn_file_actions_adddup2(actions, fd, to);
  if (answer == 0 && fd_table().holds(fd)) [[unlikely]]
    spawn_actions().add(actions, fd);
  return answer;
}
RS_INTERCEPT int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t* actions) noexcept {
  if (!runtime::fork_registry().is_empty()) spawn_actions().forget(actions);
  return real.posix_spawn_file_actions_destroy(actions);
}
RS_INTERCEPT int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn(actions, [=] { return real.posix_spawn(process, path, actions, attributes, arguments, environment); });
}
RS_INTERCEPT int posix_spawnp(pid_t* process, const char* file, const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn(actions, [=] { return real.posix_spawnp(process, file, actions, attributes, arguments, environment); });
}
