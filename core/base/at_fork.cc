#include "core/base/at_fork.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "core/base/log.h"
#include "core/base/own_threads.h"
#include "core/base/rare_calls.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace ringsock {

constinit ProcessMark process_mark;

namespace {

struct Handlers {
  ForkHandler before;
  ForkHandler in_parent;
  ForkHandler in_child;
};

/// A list of handlers. Constructors and first uses add entries; no entry is ever removed.
template <class T, std::size_t kMost>
class HandlerList {
 public:
  void add(T entry) {
    const std::size_t place = claimed_.fetch_add(1, std::memory_order_relaxed);
    if (place >= entries_.size()) __builtin_trap();  // the source code has no more handlers than the list has entries
    entries_[place] = entry;
    while (ready_.load(std::memory_order_acquire) != place) ::sched_yield();
    ready_.store(place + 1, std::memory_order_release);
  }
  [[nodiscard]] std::size_t size() const { return ready_.load(std::memory_order_acquire); }
  const T& operator[](std::size_t i) const { return entries_[i]; }

 private:
  std::array<T, kMost> entries_{};
  std::atomic<std::size_t> claimed_{0};
  std::atomic<std::size_t> ready_{0};
};

constexpr std::size_t kMostOfStep = 2;  // each preload library registers the handlers of preload/
constinit std::array<HandlerList<Handlers, kMostOfStep>, kForkSteps> fork_handlers;
constinit HandlerList<ForkHandler, 8> stranger_handlers;
constinit HandlerList<Mutex*, 16> leaf_locks;

constinit std::atomic<bool> watched{false};
constinit std::atomic<unsigned> forks{0};
/// The state of the forking thread, which is the only thread of the child.
struct ForkUnderWay {
  bool is_forking;  ///< in the child until its handlers have run; its cleared mark has no meaning until then
  bool may_run;     ///< whether the library's state belongs to this process
  /// The number of handlers of each step that ran before the fork. Handlers that are registered meanwhile have nothing
  /// to undo.
  std::array<std::size_t, kForkSteps> prepared;
  std::size_t locked;  ///< the number of leaf locks that are held
};
constinit thread_local ForkUnderWay under_way{};

/// The first thread that finds the mark cleared puts the child's copy out of use; other threads wait for it.
void become_strange() noexcept {
  static constinit std::atomic<pid_t> taken_by{0};  // a child of this process inherits it
  const pid_t process = ::getpid();
  if (taken_by.exchange(process, std::memory_order_acquire) == process) {
    while (process_mark.value.load(std::memory_order_acquire) != ProcessMark::kStranger) ::sched_yield();
    return;
  }
  for (std::size_t i = 0; i < stranger_handlers.size(); ++i) stranger_handlers[i]();
  process_mark.value.store(ProcessMark::kStranger, std::memory_order_release);
}

void ask_libc() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(run_before_fork, run_after_fork_in_parent, run_after_fork_in_child);
}

/// @param which  the handlers for the parent, or those for the child
void run_after_fork(ForkHandler Handlers::*which) {
  for (std::size_t step = 0; step < kForkSteps; ++step) {
    for (std::size_t i = 0; i < under_way.prepared[step]; ++i) {
      const ForkHandler handler = fork_handlers[step][i].*which;
      if (handler != nullptr) handler();
    }
  }
}

void unlock_leaves() {
  for (std::size_t i = under_way.locked; i-- > 0;) leaf_locks[i]->unlock();
}

}  // namespace

unsigned fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

void at_fork(ForkStep step, ForkHandler before, ForkHandler in_parent, ForkHandler in_child) {
  fork_handlers[static_cast<std::size_t>(step)].add({before, in_parent, in_child});
  ask_libc();
}

void hold_across_fork(Mutex& leaf) {
  leaf_locks.add(&leaf);
  ask_libc();
}

void run_before_fork() {
  under_way = {false, is_known_process(), {}, 0};
  if (!under_way.may_run) return;
  for (std::size_t step = kForkSteps; step-- > 0;) {
    const auto& handlers = fork_handlers[step];
    under_way.prepared[step] = handlers.size();
    for (std::size_t i = under_way.prepared[step]; i-- > 0;) {
      if (handlers[i].before != nullptr) handlers[i].before();
    }
  }
  for (; under_way.locked < leaf_locks.size(); ++under_way.locked) leaf_locks[under_way.locked]->lock();
  under_way.is_forking = true;
}

void run_after_fork_in_parent() {
  if (!under_way.may_run) return;
  under_way.is_forking = false;
  unlock_leaves();
  run_after_fork(&Handlers::in_parent);
}

void run_after_fork_in_child() {
  if (!under_way.may_run) {
    process_mark.value.store(ProcessMark::kStranger, std::memory_order_relaxed);  // its parent is one, too
    return;
  }
  if (watched.load(std::memory_order_relaxed)) {
    process_mark.value.store(ProcessMark::kKnown, std::memory_order_relaxed);
  }
  under_way.is_forking = false;
  forks.fetch_add(1, std::memory_order_relaxed);
  OwnThread::forget_after_fork();
  unlock_leaves();
  run_after_fork(&Handlers::in_child);
}

void at_strange_child(ForkHandler handler) { stranger_handlers.add(handler); }

void watch_for_strange_children() {
  if (watched.load(std::memory_order_acquire)) return;
  const int saved_errno = errno;
  if (!is_permitted(RareCall::madvise_wipe) || ::madvise(&process_mark, sizeof process_mark, MADV_WIPEONFORK) != 0) {
    log_info("children that are made without fork(3) cannot be told apart");
  }
  process_mark.value.store(ProcessMark::kKnown, std::memory_order_release);
  watched.store(true, std::memory_order_release);
  errno = saved_errno;
}

int OwnThread::count() { return running.load(std::memory_order_relaxed); }

bool has_other_threads() {
  // This directory has two links of its own and one for each thread.
  struct stat status {};
  return ::stat("/proc/self/task", &status) != 0 || static_cast<int>(status.st_nlink) - 2 > 1 + OwnThread::count();
}

bool look_at_process() noexcept {
  if (!watched.load(std::memory_order_acquire) || under_way.is_forking) return true;
  const std::uint32_t mark = process_mark.value.load(std::memory_order_acquire);
  if (mark == ProcessMark::kKnown) return true;
  const int saved_errno = errno;
  if (mark == 0) become_strange();
  errno = saved_errno;
  return false;
}

}  // namespace ringsock
