// The C interface: waiting for several descriptors.
#include <rdma/rsocket.h>

#include "core/base/posix_edge.h"
#include "core/poll/epoll_set.h"
#include "core/poll/poll_set.h"
#include "core/poll/timeouts.h"
#include "core/runtime/library_call.h"
#include "librsocket/export.h"

using namespace ringsock;

using runtime::from_milliseconds;

namespace {
int carry_out(auto body) {
  return runtime::as_library_call([&] { return to_posix(body); });
}
}  // namespace

extern "C" {

RS_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  return carry_out([&] { return runtime::poll_endpoints({fds, count}, from_milliseconds(timeout), nullptr); });
}

RS_EXPORT int rselect(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  return carry_out([&] { return runtime::select_endpoints(nfds, readable, writable, exceptional, timeout); });
}

RS_EXPORT int repoll_create(int flags) {
  return carry_out([&] { return runtime::EpollSet::create(flags); });
}

RS_EXPORT int repoll_ctl(int epoll_fd, int op, int fd, epoll_event* event) {
  return carry_out([&] { return runtime::epoll_control(epoll_fd, op, fd, event); });
}

RS_EXPORT int repoll_wait(int epoll_fd, epoll_event* events, int max_events, int timeout) {
  return carry_out(
      [&] { return runtime::epoll_wait_for(epoll_fd, events, max_events, from_milliseconds(timeout), nullptr); });
}

}  // extern "C"
