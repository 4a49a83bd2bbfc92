// Handlers that run around fork(2), and children that were made without fork(2).
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/fork_order.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"

namespace ringsock {

using ForkHandler = void (*)();

/// Registers handlers as pthread_atfork(3) does. `step` alone decides when they run, not the moment of registration.
/// Two libraries in a process may register handlers for the same step. The handlers can also be run for a clone(2) that
/// copies the process without libc's fork() (run_before_fork()). A fork that is under way does not run handlers whose
/// turn to run `before` has passed. A null handler does nothing. Threads: any.
void at_fork(ForkStep step, ForkHandler before, ForkHandler in_parent, ForkHandler in_child);

/// Registers a leaf lock: a lock of static storage duration under which no other lock is taken. It is held while the
/// process is copied, so the child finds the guarded data complete and the lock free. Leaf locks are the last to be
/// locked and the first to be unlocked. Does nothing for a lock that is registered: preload libraries share some.
/// Threads: any, one for each lock.
void hold_across_fork(Mutex& leaf);

/// Call these before and after a system call that copies this process and its memory as fork(2) does. The call must not
/// have CLONE_VM or CLONE_FILES, because the child's handlers close descriptors and change memory.
void run_before_fork();
void run_after_fork_in_parent();
void run_after_fork_in_child();

/// Returns the number of forks with our handlers between the program's first process and this one. An object that
/// stores the number at its creation can tell, without a system call, whether a parent process made it.
unsigned fork_generation() noexcept;

/// Registers a handler that runs once in a child made without our fork handlers (a clone(2) in assembly, _Fork(3)),
/// when the child first uses the library. The objects of the library belong to the parent there, and threads that the
/// child does not have may hold their locks. The handler puts the child's copy out of use; it must not take locks,
/// allocate memory, or change anything that is shared with the parent. Threads: one.
void at_strange_child(ForkHandler handler);

/// Starts to detect such children: called at the first use of the library. The first call costs one system call.
void watch_for_strange_children();

/// The slow path of is_known_process(), for a process whose mark is cleared.
bool look_at_process() noexcept;
/// Returns whether the state of the library is this process's. It is not in a child that was made without our fork
/// handlers; all handlers of at_strange_child() have seen that child by then. Costs one load. Always true before
/// watch_for_strange_children().
inline bool is_known_process() noexcept {
  return process_parts.mark.value.load(std::memory_order_acquire) == ProcessMark::kKnown || look_at_process();
}

}  // namespace ringsock
