// Programs that are spawned: posix_spawn(3).
//
// libc's child carries out the file actions and executes the program. No code of this library runs there. So libc gets
// file actions that first put kernel sockets in the place of the connections that the program gets, and then do what
// the program's file actions do. The parent's descriptors stay as they are. libc does not show what is in file actions,
// so the library keeps a record of them.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/no_cancellation.h"
#include "core/base/raised_limit.h"
#include "core/runtime/fork_registry.h"
#include "preload/pass_descriptors.h"
#include "preload/route.h"
#include "preload/spawn_calls.h"

namespace ringsock::preload {
namespace {

struct FileAction {
  enum class Kind : std::uint8_t { dup2, close, open, chdir, fchdir, closefrom, tcsetpgrp };
  Kind kind;
  int fd;  ///< of dup2: the old one; of closefrom: the first
  int to = -1;
  std::string path{};
  int flags = 0;
  mode_t mode = 0;

  /// Adds the action to `actions`. Returns an errno value.
  int add_to(posix_spawn_file_actions_t& actions) const {
    switch (kind) {
      case Kind::dup2: return real.posix_spawn_file_actions_adddup2(&actions, fd, to);
      case Kind::close: return real.posix_spawn_file_actions_addclose(&actions, fd);
      case Kind::open: return real.posix_spawn_file_actions_addopen(&actions, fd, path.c_str(), flags, mode);
      case Kind::chdir: return real.posix_spawn_file_actions_addchdir_np(&actions, path.c_str());
      case Kind::fchdir: return real.posix_spawn_file_actions_addfchdir_np(&actions, fd);
      case Kind::closefrom: return real.posix_spawn_file_actions_addclosefrom_np(&actions, fd);
      case Kind::tcsetpgrp: return real.posix_spawn_file_actions_addtcsetpgrp_np(&actions, fd);
    }
    return EINVAL;
  }
  /// Returns whether the child has another file, or none, under this number afterwards.
  [[nodiscard]] bool replaces(int number) const {
    switch (kind) {
      case Kind::dup2: return to == number;
      case Kind::close:
      case Kind::open: return fd == number;
      case Kind::closefrom: return number >= fd;
      default: return false;
    }
  }
};

using FileActions = std::vector<FileAction>;

/// Returns whether the number is in the child what it is in the parent, before the action `end`.
bool is_as_in_parent(const FileActions& actions, FileActions::const_iterator end, int number) {
  return std::none_of(actions.begin(), end, [number](const FileAction& one) { return one.replaces(number); });
}

/// Returns the numbers of this process that the actions duplicate.
std::vector<int> duplicated(const FileActions& actions) {
  std::vector<int> numbers;
  for (auto one = actions.begin(); one != actions.end(); ++one) {
    const bool is_new = std::find(numbers.begin(), numbers.end(), one->fd) == numbers.end();
    if (one->kind == FileAction::Kind::dup2 && is_new && is_as_in_parent(actions, one, one->fd))
      numbers.push_back(one->fd);
  }
  return numbers;
}

/// What is in the objects of file actions that the program has.
class FileActionRecords {
 public:
  static constexpr ProcessPart kPart = ProcessPart::spawn_actions;
  void forget(const posix_spawn_file_actions_t* object) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    records_.erase(object);
  }
  void add(const posix_spawn_file_actions_t* object, FileAction action) {
    const LibraryCall no_handlers;
    const std::lock_guard guard(lock_);
    records_[object].push_back(std::move(action));
  }
  FileActions find(const posix_spawn_file_actions_t* object) {
    const std::lock_guard guard(lock_);
    const auto found = records_.find(object);
    return found == records_.end() ? FileActions{} : found->second;
  }

  void stay_whole_in_forks() { hold_across_fork(lock_); }

 private:
  Mutex lock_;
  std::map<const posix_spawn_file_actions_t*, FileActions> records_;
};

FileActionRecords& file_action_records() { return process_state<FileActionRecords>(); }
[[gnu::constructor]] void start() { file_action_records().stay_whole_in_forks(); }

/// @param answer  what libc has answered
int record(int answer, const posix_spawn_file_actions_t* object, FileAction action) noexcept {
  try {
    if (answer == 0) file_action_records().add(object, std::move(action));
  } catch (const std::bad_alloc&) {  // then the record is found to be incomplete
  }
  return answer;
}

/// libc's file actions that the library makes.
class OwnFileActions {
 public:
  OwnFileActions() { real.posix_spawn_file_actions_init(&actions_); }
  OwnFileActions(const OwnFileActions&) = delete;
  OwnFileActions& operator=(const OwnFileActions&) = delete;
  ~OwnFileActions() { real.posix_spawn_file_actions_destroy(&actions_); }
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

  /// Puts the kernel sockets in their places, carries out `programs`, and closes what the program does not inherit.
  /// Returns an errno value.
  int fill(const ForProgram& replaced, const FileActions& programs) {
    const RaisedLimit sockets_are_above;  // libc refuses numbers above the limit
    FileActions all;
    for (std::size_t i = 0; i < replaced.numbers.size(); ++i)
      all.push_back({FileAction::Kind::dup2, replaced.sockets[i].get(), replaced.numbers[i].fd});
    all.insert(all.end(), programs.begin(), programs.end());
    for (const ForProgram::Number& number : replaced.numbers) {
      const bool is_left = is_as_in_parent(programs, programs.end(), number.fd);
      if (is_left && !number.is_inherited) all.push_back({FileAction::Kind::close, number.fd});
    }
    for (const FileAction& one : all) {
      if (const int error = one.add_to(actions_); error != 0) return error;
    }
    return 0;
  }

 private:
  posix_spawn_file_actions_t actions_{};
};

/// Carries out posix_spawn(3). `libcs(process, actions)` is libc's function.
template <class Libcs>
int spawn(pid_t* process, const posix_spawn_file_actions_t* object, Libcs libcs) try {
  if (runtime::fork_registry().is_empty()) return libcs(process, object);
  const LibraryCall no_handlers;
  const auto carry_out = [&](pid_t* number, const posix_spawn_file_actions_t* actions) {
    const OutsideLibrary child_inherits_mask;
    return libcs(number, actions);
  };
  const FileActions programs = object != nullptr ? file_action_records().find(object) : FileActions{};
  // Not known are actions of a function that is newer than this library.
  if (object != nullptr && programs.size() != static_cast<std::size_t>(object->__used))
    return carry_out(process, object);
  auto replaced = replace_for_program(duplicated(programs),
                                      [&](int number) { return is_as_in_parent(programs, programs.end(), number); });
  if (!replaced) return replaced.error().code;
  if (replaced->numbers.empty()) return carry_out(process, object);
  OwnFileActions actions;
  if (const int error = actions.fill(*replaced, programs); error != 0) return error;
  pid_t unasked = 0;
  pid_t* const number = process != nullptr ? process : &unasked;
  const int answer = carry_out(number, actions.get());
  if (answer == 0) replaced->process.is(*number);
  return answer;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

}  // namespace

bool spawned_inherit_connections() {
  if (runtime::fork_registry().is_empty()) return false;
  const LibraryCall no_handlers;
  return !hand_overs().inherited_by_spawned().empty();
}

}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int posix_spawn_file_actions_init(posix_spawn_file_actions_t* actions) noexcept {
  file_action_records().forget(actions);
  return real.posix_spawn_file_actions_init(actions);
}
RS_INTERCEPT int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t* actions) noexcept {
  file_action_records().forget(actions);
  return real.posix_spawn_file_actions_destroy(actions);
}
RS_INTERCEPT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd, int to) noexcept {
  return record(real.posix_spawn_file_actions_adddup2(actions, fd, to), actions, {FileAction::Kind::dup2, fd, to});
}
RS_INTERCEPT int posix_spawn_file_actions_addclose(posix_spawn_file_actions_t* actions, int fd) noexcept {
  return record(real.posix_spawn_file_actions_addclose(actions, fd), actions, {FileAction::Kind::close, fd});
}
RS_INTERCEPT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t* actions, int fd, const char* path,
                                                  int flags, mode_t mode) noexcept {
  const int answer = real.posix_spawn_file_actions_addopen(actions, fd, path, flags, mode);
  return answer != 0 ? answer : record(answer, actions, {FileAction::Kind::open, fd, -1, path, flags, mode});
}
RS_INTERCEPT int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t* actions, const char* path) noexcept {
  const int answer = real.posix_spawn_file_actions_addchdir_np(actions, path);
  return answer != 0 ? answer : record(answer, actions, {FileAction::Kind::chdir, -1, -1, path});
}
RS_INTERCEPT int posix_spawn_file_actions_addfchdir_np(posix_spawn_file_actions_t* actions, int fd) noexcept {
  return record(real.posix_spawn_file_actions_addfchdir_np(actions, fd), actions, {FileAction::Kind::fchdir, fd});
}
RS_INTERCEPT int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int first) noexcept {
  return record(real.posix_spawn_file_actions_addclosefrom_np(actions, first), actions,
                {FileAction::Kind::closefrom, first});
}
RS_INTERCEPT int posix_spawn_file_actions_addtcsetpgrp_np(posix_spawn_file_actions_t* actions, int terminal) noexcept {
  return record(real.posix_spawn_file_actions_addtcsetpgrp_np(actions, terminal), actions,
                {FileAction::Kind::tcsetpgrp, terminal});
}

RS_INTERCEPT int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn(process, actions, [=](pid_t* number, const posix_spawn_file_actions_t* all) {
    return real.posix_spawn(number, path, all, attributes, arguments, environment);
  });
}
RS_INTERCEPT int posix_spawnp(pid_t* process, const char* file, const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn(process, actions, [=](pid_t* number, const posix_spawn_file_actions_t* all) {
    return real.posix_spawnp(number, file, all, attributes, arguments, environment);
  });
}
