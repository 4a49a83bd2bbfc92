// The C interface: waiting for several descriptors.
#include <rdma/rsocket.h>

#include "core/base/posix_edge.h"
#include "core/poll/epoll_set.h"
#include "core/poll/poll_set.h"
#include "core/poll/timeouts.h"
#include "librsocket/export.h"

using namespace ringsock;

using runtime::from_milliseconds;

extern "C" {

RS_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  return to_posix([&] { return runtime::poll_endpoints({fds, count}, from_milliseconds(timeout), nullptr); });
}

RS_EXPORT int rselect(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  return to_posix([&] { return runtime::select_endpoints(nfds, readable, writable, exceptional, timeout); });
}

RS_EXPORT int repoll_create(int flags) {
  return to_posix([&] { return runtime::EpollSet::create(flags); });
}

RS_EXPORT int repoll_ctl(int epoll_fd, int op, int fd, epoll_event* event) {
  return to_posix([&] { return runtime::epoll_control(epoll_fd, op, fd, event); });
}

RS_EXPORT int repoll_wait(int epoll_fd, epoll_event* events, int max_events, int timeout) {
  return to_posix(
      [&] { return runtime::epoll_wait_for(epoll_fd, events, max_events, from_milliseconds(timeout), nullptr); });
}

}  // extern "C"
