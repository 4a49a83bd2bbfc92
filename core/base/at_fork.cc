#include "core/base/at_fork.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "core/base/log.h"
#include "core/base/own_threads.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/this_thread.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace ringsock {

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

/// Returns whether malloc(3) is another object's than fork(2): an allocator that the process has loaded.
bool has_foreign_malloc() {
  Dl_info allocator{}, libc{};
  const bool are_known = ::dladdr(reinterpret_cast<void*>(&::malloc), &allocator) != 0 &&
                         ::dladdr(reinterpret_cast<void*>(&::sched_yield), &libc) != 0;
  return are_known && allocator.dli_fbase != libc.dli_fbase;
}

constexpr std::size_t kMostOfStep = 2;  // each preload library registers the handlers of preload/
struct Forks {
  static constexpr ProcessPart kPart = ProcessPart::fork_handlers;
  std::array<HandlerList<Handlers, kMostOfStep>, kForkSteps> handlers;
  HandlerList<ForkHandler, 8> stranger_handlers;
  HandlerList<Mutex*, 24> leaf_locks;
  std::atomic<pthread_t> late_thread{0};  ///< whose fork the late handlers have prepared
  std::atomic<bool> watched{false};
  std::atomic<unsigned> number{0};
  std::atomic<pid_t> taken_by{0};  ///< the strange child whose copy is being put out of use; its children inherit it
};

Forks& forks() { return process_state<Forks>(); }

[[gnu::constructor]] void start() { forks(); }

/// The first thread that finds the mark cleared puts the child's copy out of use; other threads wait for it.
void become_strange() noexcept {
  Forks& all = forks();
  const pid_t process = ::getpid();
  if (all.taken_by.exchange(process, std::memory_order_acquire) == process) {
    while (process_parts.mark.value.load(std::memory_order_acquire) != ProcessMark::kStranger) ::sched_yield();
    return;
  }
  for (std::size_t i = 0; i < all.stranger_handlers.size(); ++i) all.stranger_handlers[i]();
  process_parts.mark.value.store(ProcessMark::kStranger, std::memory_order_release);
}

/// Returns whether the late handlers have prepared the fork of the calling thread.
bool is_prepared_late() { return forks().late_thread.load(std::memory_order_relaxed) == ::pthread_self(); }

void register_early() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork([] { is_prepared_late() ? void() : run_before_fork(); },
                       [] { is_prepared_late() ? void() : run_after_fork_in_parent(); },
                       [] { is_prepared_late() ? void() : run_after_fork_in_child(); });
}

/// One fork at a time is prepared (ForkRegistry), so one thread at a time is named.
void before_fork_late() {
  run_before_fork();
  forks().late_thread.store(::pthread_self(), std::memory_order_relaxed);
}
void after_fork_late(void (*run_after)()) {
  if (!is_prepared_late()) return;  // registered meanwhile
  forks().late_thread.store(0, std::memory_order_relaxed);
  run_after();
}
/// Our handlers allocate memory. Those of an allocator hold its locks, so ours must be registered behind them, to run
/// before and after them. An allocator registers its own in a constructor, which may come behind ours: then ours are
/// registered once more at the first use of the library, and the early ones leave forks of the threads that these have
/// prepared to them. libc runs its allocator's handlers inside all others. Those of the application are outside of the
/// early ones, and may use sockets.
void register_late() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      before_fork_late, [] { after_fork_late(run_after_fork_in_parent); },
      [] { after_fork_late(run_after_fork_in_child); });
}

/// @param which  the handlers for the parent, or those for the child
void run_after_fork(ForkHandler Handlers::*which) {
  const ForkUnderWay& under_way = this_thread.fork;
  for (std::size_t step = 0; step < kForkSteps; ++step) {
    for (std::size_t i = 0; i < under_way.prepared[step]; ++i) {
      const ForkHandler handler = forks().handlers[step][i].*which;
      if (handler != nullptr) handler();
    }
  }
}

void unlock_leaves() {
  for (std::size_t i = this_thread.fork.locked; i-- > 0;) forks().leaf_locks[i]->unlock();
}

}  // namespace

unsigned fork_generation() noexcept { return forks().number.load(std::memory_order_relaxed); }

void at_fork(ForkStep step, ForkHandler before, ForkHandler in_parent, ForkHandler in_child) {
  forks().handlers[static_cast<std::size_t>(step)].add({before, in_parent, in_child});
  register_early();
}

void hold_across_fork(Mutex& leaf) {
  auto& locks = forks().leaf_locks;
  for (std::size_t i = 0; i < locks.size(); ++i) {
    if (locks[i] == &leaf) return;
  }
  locks.add(&leaf);
  register_early();
}

void run_before_fork() {
  ForkUnderWay& under_way = this_thread.fork;
  under_way = {false, is_known_process(), {}, 0};
  if (!under_way.may_run) return;
  for (std::size_t step = kForkSteps; step-- > 0;) {
    const auto& handlers = forks().handlers[step];
    under_way.prepared[step] = handlers.size();
    for (std::size_t i = under_way.prepared[step]; i-- > 0;) {
      if (handlers[i].before != nullptr) handlers[i].before();
    }
  }
  const auto& leaf_locks = forks().leaf_locks;
  for (; under_way.locked < leaf_locks.size(); ++under_way.locked) leaf_locks[under_way.locked]->lock();
  under_way.is_forking = true;
}

void run_after_fork_in_parent() {
  if (!this_thread.fork.may_run) return;
  this_thread.fork.is_forking = false;
  unlock_leaves();
  run_after_fork(&Handlers::in_parent);
}

void run_after_fork_in_child() {
  if (!this_thread.fork.may_run) {
    process_parts.mark.value.store(ProcessMark::kStranger, std::memory_order_relaxed);  // its parent is one, too
    return;
  }
  if (forks().watched.load(std::memory_order_relaxed)) {
    process_parts.mark.value.store(ProcessMark::kKnown, std::memory_order_relaxed);
  }
  this_thread.fork.is_forking = false;
  forks().number.fetch_add(1, std::memory_order_relaxed);
  OwnThread::forget_after_fork();
  unlock_leaves();
  run_after_fork(&Handlers::in_child);
}

void at_strange_child(ForkHandler handler) { forks().stranger_handlers.add(handler); }

void watch_for_strange_children() {
  if (forks().watched.load(std::memory_order_acquire)) return;
  const int saved_errno = errno;
  if (has_foreign_malloc()) register_late();
  if (!is_permitted(RareCall::madvise_wipe) ||
      ::madvise(&process_parts.mark, sizeof process_parts.mark, MADV_WIPEONFORK) != 0) {
    log_info("children that are made without fork(3) cannot be told apart");
  }
  process_parts.mark.value.store(ProcessMark::kKnown, std::memory_order_release);
  forks().watched.store(true, std::memory_order_release);
  errno = saved_errno;
}

bool look_at_process() noexcept {
  if (!forks().watched.load(std::memory_order_acquire) || this_thread.fork.is_forking) return true;
  const std::uint32_t mark = process_parts.mark.value.load(std::memory_order_acquire);
  if (mark == ProcessMark::kKnown) return true;
  const int saved_errno = errno;
  if (mark == 0) become_strange();
  errno = saved_errno;
  return false;
}

}  // namespace ringsock
