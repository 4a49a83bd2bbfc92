// Epoll sets that are members of epoll sets.
#pragma once

#include "core/base/result.h"

namespace ringsock::preload {

/// A set that the application has made; -1 is ignored. Threads: any.
void note_epoll_set(int epoll_fd) noexcept;

/// `copy` is a duplicate of `fd` (dup(2)), whatever that is; -1 is ignored. Threads: any.
void note_copy(int fd, int copy) noexcept;

/// Makes the kernel's set `epoll_fd` one of ours (runtime::EpollSet::adopt), and with it those sets whose member it is:
/// the kernel would not tell them what happens on a ring. All of its descriptors become ours. Looks at the other sets
/// of the process, a few microseconds each.
Status adopt_epoll_set(int epoll_fd);

}  // namespace ringsock::preload
