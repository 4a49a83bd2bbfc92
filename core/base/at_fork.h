// What is done around fork(2), and the children that come without it.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"

namespace ringsock {

using ForkHandler = void (*)();

/// As pthread_atfork(3): `before` handlers run last registered first, the others in order. All of ours stand in one
/// list, so that they can also be run for a clone(2) that copies the process without libc's fork() (run_before_fork()).
/// Null: nothing to do. Threads: any.
void at_fork(ForkHandler before, ForkHandler in_parent, ForkHandler in_child);

/// The same for what goes around all others, whenever those are registered: `before` runs first, the others last. In a
/// constructor: a fork that is under way when handlers come knows nothing of them.
void at_fork_outermost(ForkHandler before, ForkHandler in_parent, ForkHandler in_child);

/// A lock of static storage duration under which no other lock is taken: held while a process is copied, so the child
/// has what it guards whole, and the lock free. The last to be locked, the first to be unlocked. Threads: any.
void hold_across_fork(Mutex& leaf);

/// Around a system call that copies this process and its memory as fork(2) does. Never with CLONE_VM or CLONE_FILES:
/// the child's handlers close descriptors and change memory.
void run_before_fork();
void run_after_fork_in_parent();
void run_after_fork_in_child();

/// How many forks with our handlers lie between the program's first process and this one: an object that keeps the
/// number it was made at knows whether it is a parent's, without a system call.
unsigned fork_generation() noexcept;

/// Called once in a child that was made without our fork handlers (a clone(2) in assembly, _Fork(3)), when it first
/// uses the library: the objects of the library belong to the parent, and their locks may be held by threads that this
/// process does not have. A handler puts the child's copy out of use: without locks, memory allocation, or a change of
/// anything that the parent shares. Threads: one.
void at_strange_child(ForkHandler handler);

/// From now on such children are noticed. Costs one system call, the first time.
void watch_for_strange_children();

/// A page that the kernel clears in every child that has a copy of the memory (MADV_WIPEONFORK). Children that share
/// the memory (vfork(2), posix_spawn(3)) share the page, too, and change nothing.
struct alignas(4096) ProcessMark {
  static constexpr std::uint32_t kKnown = 1;
  static constexpr std::uint32_t kStranger = 2;
  std::atomic<std::uint32_t> value{0};
};
extern ProcessMark process_mark;

/// is_known_process() where the mark does not say so.
bool look_at_process() noexcept;
/// Whether the state of the library is this process's: false in a child that was made without our fork handlers, which
/// all handlers of at_strange_child() have seen by then. A load; nothing before watch_for_strange_children().
inline bool is_known_process() noexcept {
  return process_mark.value.load(std::memory_order_acquire) == ProcessMark::kKnown || look_at_process();
}

}  // namespace ringsock
