// wait(2) and its like, past the processes that the library makes (core/base/helper_process.h).
//
// Only calls that wait for any child, or for any child of a process group, can meet such a process. In a process that
// adopts orphans they look first which child has news (WNOWAIT), and carry out the call for that child only when it is
// the program's. If only helpers are left, the program has no child: ECHILD.
#include "preload/child_calls.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <optional>

#include "core/base/at_fork.h"
#include "core/base/helper_process.h"
#include "core/base/no_cancellation.h"
#include "core/base/user_memory.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

/// waitid(2)'s description of the children.
struct Wanted {
  idtype_t type;
  id_t id;
  int options;
};

/// Looks for a child with news. Returns its number, 0 when there is none and `extra` has WNOHANG, or -1 and errno.
pid_t look(const Wanted& wanted, int extra) {
  siginfo_t news{};
  const int options = (wanted.options & ~WNOHANG) | extra;
  return real.waitid(wanted.type, wanted.id, &news, options) == 0 ? news.si_pid : -1;
}

void take_helper(pid_t helper, const Wanted& wanted) {
  static_cast<void>(look({P_PID, static_cast<id_t>(helper), wanted.options & ~WNOWAIT}, WNOHANG));
}

ChildrenSeen children_of(const Wanted& wanted) {
  const pid_t group = wanted.id == 0 ? ::getpgrp() : static_cast<pid_t>(wanted.id);
  const auto options = static_cast<unsigned>(wanted.options);
  return look_at_children(
      {wanted.type == P_PGID ? group : 0, (options & __WALL) != 0, (options & static_cast<unsigned>(__WCLONE)) != 0});
}

/// Returns whether the kernel forgets children that end. A call then returns once all are gone.
bool forgets_children() {
  struct sigaction action {};
  if (::sigaction(SIGCHLD, nullptr, &action) != 0) return false;
  return (action.sa_flags & SA_NOCLDWAIT) != 0 || action.sa_handler == SIG_IGN;
}

/// Sleeps until a child may have news. `other` is a child of the program, or 0. Returns -1 and errno as wait(2) does.
pid_t sleep_until_news(const Wanted& wanted, pid_t other) {
  if (other == 0 || !forgets_children()) return look(wanted, WNOWAIT);
  const pid_t news = look({P_PID, static_cast<id_t>(other), wanted.options}, WNOWAIT);
  return news < 0 && errno == ECHILD ? 0 : news;
}

/// Threads that look at the children before they sleep, or sleep; the number of forks before is in the upper half.
constinit std::atomic<std::uint64_t> sleepers{0};

class CountedSleeper {
 public:
  CountedSleeper() {
    std::uint64_t before = sleepers.load();
    while (!sleepers.compare_exchange_weak(before, (is_ours(before) ? before : stamp()) + 1)) {
    }
  }
  CountedSleeper(const CountedSleeper&) = delete;
  CountedSleeper& operator=(const CountedSleeper&) = delete;
  ~CountedSleeper() { sleepers.fetch_sub(1); }
  [[nodiscard]] static bool are_there() {
    const std::uint64_t now = sleepers.load();
    return is_ours(now) && now != stamp();
  }

 private:
  static std::uint64_t stamp() { return std::uint64_t{fork_generation()} << 32; }
  static bool is_ours(std::uint64_t value) { return value >> 32 == fork_generation(); }
};

/// The kernel leaves a thread asleep whose last child another thread has taken, as long as there is a helper. A helper
/// that ends at once wakes one such thread, which then wakes the next one.
void wake_a_sleeper() {
  if (!CountedSleeper::are_there() || !adopts_orphans()) return;
  const int saved_errno = errno;
  const ChildrenSeen children = look_at_children({});
  // Without the handlers around fork(2): the child makes two system calls.
  if (children.helper && children.other == 0 && ::syscall(SYS_clone, long{SIGCHLD}, 0L, 0L, 0L, 0L) == 0) {
    ::syscall(SYS_prctl, long{PR_SET_NAME}, kRelayName);
    ::syscall(SYS_exit_group, 0L);
  }
  errno = saved_errno;
}

/// Where no child of the program has news: sleeps until one may have, which returns nothing, or returns as wait(2).
std::optional<pid_t> no_child_yet(const Wanted& wanted) {
  {
    // Counted before the look: the thread that takes the last child later sees this one.
    const CountedSleeper counted;
    const ChildrenSeen children = children_of(wanted);
    if (!children.helper || children.other != 0) {
      if ((wanted.options & WNOHANG) != 0) return 0;
      return sleep_until_news(wanted, children.other) < 0 ? std::optional(-1) : std::nullopt;
    }
  }
  wake_a_sleeper();
  errno = ECHILD;
  return -1;
}

/// Returns the next child of the program with news, without taking the news. Returns as wait(2) otherwise.
pid_t next_child(const Wanted& wanted) {
  for (;;) {
    const pid_t next = look(wanted, WNOHANG | WNOWAIT);
    if (next < 0) return next;
    if (next > 0 && !is_helper(next)) return next;
    if (next > 0) {
      take_helper(next, wanted);
      continue;
    }
    if (const auto answer = no_child_yet(wanted)) return *answer;
  }
}

/// Carries out a wait. `take(Wanted)` is the program's call, for these children; it returns as wait(2) does.
template <class Take>
pid_t wait_past_helpers(const Wanted& wanted, Take take) {
  for (;;) {
    if (!adopts_orphans()) {
      const pid_t found = take(wanted);
      if (found <= 0 || !PassingChild::is_found(found)) return found;
      take_helper(found, wanted);
      continue;
    }
    const pid_t next = next_child(wanted);
    if (next <= 0) return next;
    const pid_t taken = take(Wanted{P_PID, static_cast<id_t>(next), wanted.options | WNOHANG});
    if (taken > 0) wake_a_sleeper();
    // Otherwise another thread was faster.
    if (taken > 0 || (taken < 0 && errno != ECHILD)) return taken;
  }
}

/// wait4(2)'s description, as its first argument gives it.
Wanted by_number(pid_t pid, int options) {
  const int all = options | WEXITED;
  if (pid == -1) return {P_ALL, 0, all};
  if (pid == 0) return {P_PGID, static_cast<id_t>(::getpgrp()), all};
  return {P_PGID, static_cast<id_t>(-pid), all};
}

pid_t wait_ours(pid_t pid, int* status, int options, rusage* usage) {
  constexpr auto kKnown = static_cast<unsigned>(WNOHANG | WUNTRACED | WCONTINUED | __WNOTHREAD | __WCLONE | __WALL);
  // The kernel reports the errors of other options, and of a group that is no number.
  if (pid > 0 || pid == INT_MIN || (static_cast<unsigned>(options) & ~kKnown) != 0) {
    const pid_t taken = real.wait4(pid, status, options, usage);
    if (taken > 0) wake_a_sleeper();
    return taken;
  }
  return wait_past_helpers(by_number(pid, options), [&](const Wanted& which) {
    const bool is_one = which.type == P_PID;
    return real.wait4(is_one ? static_cast<pid_t>(which.id) : pid, status, is_one ? options | WNOHANG : options, usage);
  });
}

/// `call(type, id, news, options)` is waitid(), or the system call.
template <class Call>
int waitid_ours(const Wanted& wanted, siginfo_t* news, Call call) {
  const bool is_group = wanted.type == P_ALL || wanted.type == P_PGID;
  if (!is_group || (news != nullptr && !are_writable(news))) {
    const int done = call(wanted.type, wanted.id, news, wanted.options);
    if (done == 0) wake_a_sleeper();
    return done;
  }
  siginfo_t found{};
  const pid_t child = wait_past_helpers(wanted, [&](const Wanted& which) {
    found = {};
    return call(which.type, which.id, &found, which.options) == 0 ? found.si_pid : -1;
  });
  if (child < 0) return -1;
  if (child == 0) found = {};
  if (news != nullptr) *news = found;
  return 0;
}

}  // namespace

long wait4_by_number(const std::array<long, 6>& arguments) {
  const NoCancellation hold;
  return wait_ours(static_cast<pid_t>(arguments[0]), reinterpret_cast<int*>(arguments[1]),
                   static_cast<int>(arguments[2]), reinterpret_cast<rusage*>(arguments[3]));
}

long waitid_by_number(const std::array<long, 6>& arguments) {
  const NoCancellation hold;
  const Wanted wanted{static_cast<idtype_t>(arguments[0]), static_cast<id_t>(arguments[1]),
                      static_cast<int>(arguments[3])};
  return waitid_ours(wanted, reinterpret_cast<siginfo_t*>(arguments[2]),
                     [usage = arguments[4]](idtype_t type, id_t id, siginfo_t* news, int options) {
                       return static_cast<int>(real.syscall(SYS_waitid, static_cast<long>(type), static_cast<long>(id),
                                                            reinterpret_cast<long>(news), options, usage, 0));
                     });
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

// The header declares the first two as functions that throw nothing, although they are cancellation points.
RS_INTERCEPT pid_t ringsock_wait4(pid_t pid, int* status, int options, rusage* usage) asm("wait4");
RS_INTERCEPT pid_t ringsock_wait4(pid_t pid, int* status, int options, rusage* usage) {
  return wait_ours(pid, status, options, usage);
}
RS_INTERCEPT pid_t ringsock_wait3(int* status, int options, rusage* usage) asm("wait3");
RS_INTERCEPT pid_t ringsock_wait3(int* status, int options, rusage* usage) {
  return wait_ours(-1, status, options, usage);
}
RS_INTERCEPT pid_t waitpid(pid_t pid, int* status, int options) { return wait_ours(pid, status, options, nullptr); }
RS_INTERCEPT pid_t wait(int* status) { return wait_ours(-1, status, 0, nullptr); }
RS_INTERCEPT pid_t __waitpid(pid_t pid, int* status, int options);
RS_INTERCEPT pid_t __waitpid(pid_t pid, int* status, int options) { return wait_ours(pid, status, options, nullptr); }
RS_INTERCEPT pid_t __wait(int* status);
RS_INTERCEPT pid_t __wait(int* status) { return wait_ours(-1, status, 0, nullptr); }
RS_INTERCEPT int waitid(idtype_t type, id_t id, siginfo_t* news, int options) {
  return waitid_ours({type, id, options}, news, real.waitid);
}
