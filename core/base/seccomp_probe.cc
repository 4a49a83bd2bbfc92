#include "core/base/seccomp_probe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "core/base/signals_blocked.h"
#include "core/base/unique_fd.h"

namespace ringsock {

namespace {

constexpr std::size_t kWaitRow = static_cast<std::size_t>(RareCall::wait4);
constexpr std::size_t kKillRow = static_cast<std::size_t>(RareCall::kill);
constexpr std::size_t kPrctlRow = static_cast<std::size_t>(RareCall::prctl);

/// The results, in memory that the children share.
struct Board {
  std::atomic<std::size_t> at;  ///< the row that is being tried
  std::atomic<bool> done;
  std::array<std::atomic<Verdict>, kMostRareCalls> verdicts;
};

Verdict attempt(const RareCallRow& row) {
  const auto& a = row.arguments;
  errno = 0;
  const long answer = ::syscall(row.number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (answer >= 0) return Verdict::allowed;
  return errno == row.expected ? Verdict::allowed : Verdict::refused;
}

/// Runs in the child and makes nothing but system calls: the child's memory is a copy, and other threads may have held
/// locks when it was made.
[[noreturn]] void try_from(std::size_t first, std::span<const RareCallRow> rows, Board& board) {
  // Makes the child undumpable, so that its death leaves no core dump.
  if (first > kPrctlRow && board.verdicts[kPrctlRow].load() == Verdict::allowed) attempt(rows[kPrctlRow]);
  for (std::size_t i = first; i < rows.size(); ++i) {
    board.at.store(i, std::memory_order_release);
    board.verdicts[i].store(attempt(rows[i]), std::memory_order_release);
  }
  board.at.store(rows.size(), std::memory_order_release);
  board.done.store(true, std::memory_order_release);
  for (;;) ::syscall(SYS_exit_group, 0);
}

void pause_briefly() {
  const timespec time{0, 50'000};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

constexpr int kMostPauses = 40'000;  // some 2 to 4 seconds

/// The state of a child, found by calls that the start of any program makes: a filter may kill for wait4(2).
struct ChildState {
  bool is_known = false;  ///< false: there is no /proc
  bool is_dead = false;
  bool wished_exit = false;  ///< it ended by exit_group(kFine)
};
constexpr int kFine = 1;

ChildState look_at(pid_t child) {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(child));
  const UniqueFd status(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!status) return {};
  std::array<char, 1024> text;
  const ssize_t length = ::read(status.get(), text.data(), text.size());
  if (length <= 0) return {};
  // "number (name) state ... status"; a name may contain anything.
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  const auto name_end = all.rfind(") ");
  const bool dead = name_end != std::string_view::npos && all.substr(name_end + 2, 1) == "Z";
  return {true, dead, dead && all.ends_with(" 256\n")};
}
static_assert(kFine << 8 == 256);

constexpr int kPausesPerLook = 64;

/// Watches the child until the row of wait4(2) is passed. Returns false when the child hangs or died of it.
bool passed_wait_row(pid_t child, const Board& board) {
  for (int i = 1; i <= kMostPauses; ++i) {
    const bool dead = i % kPausesPerLook == 0 && look_at(child).is_dead;
    if (board.verdicts[kWaitRow].load(std::memory_order_acquire) != Verdict::unknown) return true;
    if (dead) return false;
    pause_briefly();
  }
  return false;
}

/// Waits for the child's end. Returns whether it ended by itself.
bool wait_for_end(pid_t child, const Board& board) {
  for (int i = 0; i < kMostPauses; ++i) {
    const long ended = ::syscall(SYS_wait4, child, nullptr, WNOHANG | __WALL, nullptr, 0, 0);
    if (ended == child || (ended < 0 && errno == ECHILD)) return true;
    pause_briefly();
  }
  if (board.verdicts[kKillRow].load() != Verdict::allowed) return false;
  ::syscall(SYS_kill, child, SIGKILL, 0, 0, 0, 0);
  ::syscall(SYS_wait4, child, nullptr, __WALL, nullptr, 0, 0);
  return false;
}

/// Makes a child with exit signal 0: its end sends no SIGCHLD, and wait(2) does not see it.
pid_t make_child() { return static_cast<pid_t>(::syscall(SYS_clone, 0, 0, 0, 0, 0, 0)); }

/// Tries what the attempts themselves need: a signal mask, and memory that the children share.
[[noreturn]] void try_tools() {
  const std::uint64_t all = ~std::uint64_t{0};
  const long masked = ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, 0, sizeof all, 0, 0);
  const long memory = ::syscall(SYS_mmap, 0, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (;;) ::syscall(SYS_exit_group, masked == 0 && memory != -1 ? kFine : 0);
}

class Scout {
 public:
  Scout() : child_(make_child()) {
    if (child_ == 0) try_tools();
  }
  /// Returns whether the tools may be used. Also returns true where the child cannot be watched.
  [[nodiscard]] bool found_tools() const {
    if (child_ < 0) return false;
    for (int i = 0; i < kMostPauses; ++i) {
      const ChildState state = look_at(child_);
      if (!state.is_known || state.wished_exit) return true;
      if (state.is_dead) return false;
      pause_briefly();
    }
    return false;
  }
  void reap() const { ::syscall(SYS_wait4, child_, nullptr, __WALL, nullptr, 0, 0); }

 private:
  pid_t child_;
};

void run_children(std::span<const RareCallRow> rows, Board& board) {
  // Signals are blocked, so that a filter's SIGSYS kills the child instead of running a handler of the application
  // there.
  const SignalsBlocked blocked;
  for (std::size_t first = 0; first < rows.size() && !board.done.load();) {
    const pid_t child = make_child();
    if (child == 0) try_from(first, rows, board);
    if (child < 0 || !passed_wait_row(child, board)) return;
    if (board.verdicts[kWaitRow].load() != Verdict::allowed) return;
    if (!wait_for_end(child, board)) return;
    if (board.done.load()) return;
    const std::size_t deadly = board.at.load();
    board.verdicts[deadly].store(Verdict::killed);
    first = deadly + 1;
  }
}

}  // namespace

Verdicts probe_seccomp_filter(std::span<const RareCallRow> rows) {
  Verdicts out{};
  const Scout scout;
  if (!scout.found_tools()) return out;
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return out;
  auto& board = *new (memory) Board{};
  run_children(rows, board);
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = board.verdicts[i].load();
  ::munmap(memory, sizeof(Board));
  if (out[kWaitRow] == Verdict::allowed) scout.reap();
  return out;
}

}  // namespace ringsock
