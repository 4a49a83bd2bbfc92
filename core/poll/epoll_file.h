// The kernel's epoll files.
#pragma once

#include <sys/epoll.h>

#include "core/base/result.h"

namespace ringsock::runtime {

/// epoll_ctl(2) on a file of the kernel's. `event` is null for EPOLL_CTL_DEL.
inline Status control_epoll_file(int epoll_fd, int op, int fd, const epoll_event* event) {
  epoll_event copy{};
  if (event) copy = *event;
  if (::epoll_ctl(epoll_fd, op, fd, &copy) != 0) return Error::last("epoll_ctl");
  return ok();
}

}  // namespace ringsock::runtime
