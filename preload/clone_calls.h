// Processes that a program makes by syscall(2).
#pragma once

namespace ringsock::preload {

/// Returns whether a child may share this process's memory until it executes a program, as after vfork(2): no endpoint
/// exists that the child could close instead of its copy, and no other thread that could make one meanwhile.
bool may_share_memory();

/// Returns whether system call `number` makes a process.
bool makes_process(long number);
/// Carries out such a system call. A child that gets a copy of this process is made as by fork(2), with the library's
/// fork handlers. A child that shares memory or descriptors is left to the kernel.
long make_process(long number, long first, long second, long third, long fourth, long fifth, long sixth);

}  // namespace ringsock::preload
