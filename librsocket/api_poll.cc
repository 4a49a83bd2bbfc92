// The C edge: waiting for several descriptors.
#include <rdma/rsocket.h>

#include "core/base/posix_edge.h"
#include "core/runtime/epoll_set.h"
#include "core/runtime/poll_set.h"
#include "librsocket/export.h"

using namespace ringsock;

namespace {

/// Milliseconds as poll(2) and epoll_wait(2) take them: negative is for ever.
Nanos from_milliseconds(int timeout) { return timeout < 0 ? Nanos::max() : Nanos(std::chrono::milliseconds(timeout)); }

}  // namespace

extern "C" {

RS_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  return to_posix([&] { return runtime::poll_endpoints({fds, count}, from_milliseconds(timeout), nullptr); });
}

RS_EXPORT int rselect(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  return to_posix([&]() -> Result<int> {
    Nanos left = Nanos::max();
    if (timeout != nullptr) {
      if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return Error{EINVAL, "rselect: time-out"};
      constexpr time_t kForEver = 1'000'000'000;
      if (timeout->tv_sec < kForEver) {
        left = std::chrono::seconds(timeout->tv_sec) + std::chrono::microseconds(timeout->tv_usec);
      }
    }
    auto ready = runtime::select_endpoints(nfds, readable, writable, exceptional, left, nullptr);
    if (timeout != nullptr && left != Nanos::max()) {
      timeout->tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
      timeout->tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(left).count() % 1'000'000;
    }
    return ready;
  });
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
