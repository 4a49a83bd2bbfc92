#include "librsocket/hand_over/start_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/helper_process.h"
#include "core/base/log.h"
#include "core/base/raised_limit.h"
#include "core/base/signals_blocked.h"
#include "core/base/this_thread.h"
#include "core/base/unique_fd.h"
#include "core/poll/sleeper.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "librsocket/family_record.h"
#include "librsocket/hand_over/door.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using runtime::Endpoint;
using runtime::fd_table;
using runtime::Lookup;

namespace {

void close_numbers(unsigned first, unsigned last) {
  // Directly: where a preload library intercepts close_range(2), it closes endpoints.
  ::syscall(SYS_close_range, long{first}, long{last}, 0L);
}

/// _exit(2), past what a preload library does before.
[[noreturn]] void exit_at_once(int status) {
  ::syscall(SYS_exit_group, long{status});
  __builtin_unreachable();
}

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first) close_numbers(first, number - 1);
    first = number + 1;
  }
  close_numbers(first, ~0U);
}

[[noreturn]] void run_relay(const std::vector<RelayedConnection>& connections, UniqueFd begun) {
  // Signals that the application sends to its processes or terminal do not concern the relay.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  set_log_level(LogLevel::none);  // descriptor 2 may not be standard error any more
  [[maybe_unused]] const int moved = ::chdir("/");
  std::vector<const Endpoint*> ours;
  std::vector<int> kept{runtime::thread_bell(), own_door_number(), begun.get()};
  for (const auto& connection : connections) {
    if (const Lookup ring = fd_table().find(connection.ring)) ours.push_back(&*ring);
    kept.push_back(connection.ring);
    kept.push_back(connection.kernel);
    kept.push_back(connection.theirs);
  }
  std::erase(kept, -1);
  // This process does not count as a holder of any other socket.
  runtime::fork_registry().try_for_each([&](Endpoint& endpoint) {
    if (std::find(ours.begin(), ours.end(), &endpoint) == ours.end()) endpoint.process_ends();
  });
  close_all_but(std::move(kept));
  relay(connections, std::move(begun));
  leave_families();
  exit_at_once(0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMayChangeStacks = false;  // the sanitizers know the stack of the thread only
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kMayChangeStacks = false;
#else
constexpr bool kMayChangeStacks = true;
#endif
#else
constexpr bool kMayChangeStacks = true;
#endif

/// Returns a stack with a page below it that nobody may touch; null without memory.
void* make_stack(std::size_t bytes) {
  const auto guard = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory =
      ::mmap(nullptr, guard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::mprotect(memory, guard, PROT_NONE);
  return static_cast<std::byte*>(memory) + guard;
}

/// What run_relay() gets. A process that becomes a relay has one thread.
struct RelayArguments {
  const std::vector<RelayedConnection>& connections;
  UniqueFd begun;
};

/// The start of that stack. makecontext(3) passes int arguments only: the address is in two halves.
void enter_relay(unsigned high, unsigned low) {
  auto& arguments = *reinterpret_cast<RelayArguments*>(std::uintptr_t{high} << 32 | low);
  run_relay(arguments.connections, std::move(arguments.begun));
}

/// Calls run_relay() on a stack of its own: the process has a copy of the stack of the application's thread that hands
/// the connections over, and that stack may have no more than PTHREAD_STACK_MIN bytes.
[[noreturn]] void run_relay_on_own_stack(const std::vector<RelayedConnection>& connections, UniqueFd begun) {
  constexpr std::size_t kStackBytes = std::size_t{512} * 1024;
  void* const stack = kMayChangeStacks ? make_stack(kStackBytes) : nullptr;
  ucontext_t context;
  if (stack == nullptr || ::getcontext(&context) != 0) run_relay(connections, std::move(begun));
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  RelayArguments arguments{connections, std::move(begun)};
  const auto address = reinterpret_cast<std::uintptr_t>(&arguments);
  ::makecontext(&context, reinterpret_cast<void (*)()>(&enter_relay), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
  ::setcontext(&context);
  exit_at_once(1);
}

struct PipeSignal {
  UniqueFd wait;
  UniqueFd give;
};

Result<PipeSignal> pipe_signal() {
  const RaisedLimit beyond_full_table;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::last("hand-over: pipe");
  return PipeSignal{out_of_the_way(UniqueFd(ends[0])), out_of_the_way(UniqueFd(ends[1]))};
}

void wait_for_signal(const PipeSignal& start) {
  char byte = 0;
  while (::read(start.wait.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}
void give_signal(const PipeSignal& start) { [[maybe_unused]] const ssize_t given = ::write(start.give.get(), "", 1); }

/// Waits until the relay has moved what came before it began, so that a call that does not block finds it at the kernel
/// socket. A relay that has no CPU for long is not waited for.
void wait_until_begun(PipeSignal begun) {
  constexpr int kPatienceMilliseconds = 1000;
  begun.give.reset();  // the relay may have been killed
  pollfd entry{begun.wait.get(), POLLIN, 0};
  ::poll(&entry, 1, kPatienceMilliseconds);
}

/// What the child between tells its parent before it ends. Its exit status would be lost where the program ignores
/// SIGCHLD, or where another thread waits for any child.
enum class Outcome : char { relay_made, fork_failed, closed_before };

void tell(const PipeSignal& way, Outcome outcome) {
  [[maybe_unused]] const ssize_t told = ::write(way.give.get(), &outcome, sizeof outcome);
}

/// Returns what a child has told that has ended. One that was killed has told nothing.
Outcome told_by_ended_child(const PipeSignal& way) {
  Outcome outcome = Outcome::fork_failed;
  pollfd entry{way.wait.get(), POLLIN, 0};
  if (::poll(&entry, 1, 0) > 0) [[maybe_unused]]
    const ssize_t got = ::read(way.wait.get(), &outcome, sizeof outcome);
  return outcome;
}

/// Returns whether this process, which has just been forked, has the connections with which the relay begins at once.
/// Another thread may have closed one before the fork.
bool has_all(const std::vector<RelayedConnection>& connections) {
  return std::all_of(connections.begin(), connections.end(), [](const RelayedConnection& one) {
    if (!one.at_once) return true;
    const Lookup ring = fd_table().find(one.ring);
    auto* const socket = ring ? find_stream(*ring) : nullptr;
    return socket != nullptr && socket->inheritance().family() != nullptr;
  });
}

/// Runs in the child between the application and the relay: makes the relay, tells on `begun` what came of it, and
/// ends.
[[noreturn]] void run_between(PipeSignal& start, PipeSignal& begun, const std::vector<RelayedConnection>& connections) {
  // The relay inherits the name, by which wait(2) of the next subreaper knows it from the start.
  ::prctl(PR_SET_NAME, kRelayName);
  start.give.reset();
  wait_for_signal(start);
  const bool is_complete = has_all(connections);
  const pid_t process = is_complete ? ::fork() : -1;
  if (process == 0) {
    wait_for_signal(start);
    run_relay_on_own_stack(connections, std::move(begun.give));
  }
  leave_families();
  if (!is_complete) {
    tell(begun, Outcome::closed_before);
  } else {
    tell(begun, process < 0 ? Outcome::fork_failed : Outcome::relay_made);
  }
  exit_at_once(0);
}

/// Drops the SIGCHLD of a child, which this thread has blocked, unless one was pending before.
void drop_child_signal(const sigset_t& pending_before) {
  if (sigismember(&pending_before, SIGCHLD) != 0) return;
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  const timespec none{};
  ::sigtimedwait(&child_signal, nullptr, &none);
}

}  // namespace

Status start_relay(const std::vector<RelayedConnection>& connections) {
  const SignalsBlocked blocked;  // for the SIGCHLD of the child in between
  sigset_t pending_before;
  ::sigpending(&pending_before);
  auto start = pipe_signal();
  if (!start) return start.error();
  auto begun = pipe_signal();
  if (!begun) return begun.error();
  this_thread.makes_helper = true;
  const pid_t between = ::fork();
  if (between == 0) run_between(*start, *begun, connections);
  this_thread.makes_helper = false;
  if (between < 0) return Error::last("hand-over: fork");
  // It ends only now, so that no thread that waits for any child takes it for one of the application's.
  PassingChild::expect(between);
  give_signal(*start);
  PassingChild::wait(between);
  drop_child_signal(pending_before);
  const Outcome outcome = told_by_ended_child(*begun);
  // The relay begins only now, because that SIGCHLD would interrupt a call that has moved to the kernel.
  give_signal(*start);
  if (outcome == Outcome::closed_before) return Error{EBUSY, "hand-over: closed meanwhile"};
  if (outcome == Outcome::fork_failed) return Error{EAGAIN, "hand-over: fork"};
  wait_until_begun(*std::move(begun));
  return ok();
}

}  // namespace ringsock::rs
