// System calls that make a process, where syscall(2) carries them.
#pragma once

namespace ringsock::preload {

/// Whether a child may share this process's memory until it executes a program, as vfork(2)'s do: there is no socket of
/// ours that it could close instead of its copy, and no other thread that could make one meanwhile.
bool may_share_memory();

/// Whether `number` makes a process.
bool makes_process(long number);
/// Carries it out: a copy of this process comes into the world as by fork(2), with our fork handlers. What shares
/// memory or descriptors is left alone.
long make_process(long number, long first, long second, long third, long fourth, long fifth, long sixth);

}  // namespace ringsock::preload
