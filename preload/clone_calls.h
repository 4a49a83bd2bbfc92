// Processes that a program makes by syscall(2), and tables of descriptors.
#pragma once

namespace ringsock::preload {

/// Returns whether a child may share this process's memory until it executes a program, as after vfork(2): no endpoint
/// exists that the child could close instead of its copy, and no other thread that could make one meanwhile.
bool may_share_memory();

/// Returns whether system call `number` makes a process.
bool makes_process(long number);
/// Carries out such a system call. A child that gets a copy of this process is made as by fork(2), with the library's
/// fork handlers. A child that shares memory is left to the kernel. Before a child that shares the descriptors only,
/// all sockets become the kernel's.
long make_process(long number, long first, long second, long third, long fourth, long fifth, long sixth);

/// Carries out unshare(2). Where the calling thread gets another table of descriptors than other threads of the
/// application, all sockets become the kernel's before.
int unshare_in_order(int flags);
/// Called before the calling thread gets a table of descriptors of its own: the library has one table for all threads.
/// Returns whether it is the application's only thread.
bool prepare_own_descriptors();

}  // namespace ringsock::preload
