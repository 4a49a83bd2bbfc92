// Epoll sets that are members of epoll sets.
#pragma once

#include "core/base/result.h"

namespace ringsock::preload {

/// Records an epoll set that the application has made. Ignores -1. Threads: any.
void note_epoll_set(int epoll_fd) noexcept;

/// Returns whether an ancestor of this process made the set, and may wait on it. Threads: any.
bool is_inherited_set(int epoll_fd);

/// Records that `copy` is a duplicate of `fd` (dup(2)), which may be any file. Ignores -1. Threads: any.
void note_copy(int fd, int copy) noexcept;

/// Adopts the kernel's set `epoll_fd` (runtime::EpollSet::adopt) under all of its descriptors, and the sets that it is
/// a member of, because the kernel would not report events of a ring to them. Reads the members of the process's other
/// sets, a few microseconds each.
Status adopt_epoll_set(int epoll_fd);

}  // namespace ringsock::preload
