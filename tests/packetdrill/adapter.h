// What every call of packetdrill's table begins with: the adapter behind `userdata`, and its lock.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>

#include "tests/packetdrill/host.h"
#include "tests/packetdrill/pipes.h"

namespace ringsock::packetdrill {

struct EpollSet {
  std::map<int, epoll_event> wanted;
  std::map<int, std::uint64_t> seen;  ///< arrivals when an EPOLLET descriptor was reported
};

struct Adapter {
  explicit Adapter(bool whole) : host(whole) {}
  Host host;
  std::map<int, SocketPtr> sockets;
  std::map<int, EpollSet> epolls;
  Pipes pipes;
  int next = 100;
};

inline int fail(int code) {
  errno = code;
  return -1;
}

/// What every call begins with.
struct Call {
  explicit Call(void* userdata) : all(*static_cast<Adapter*>(userdata)), lock(all.host.mutex()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  /// What the call has changed may let another thread go on.
  ~Call() {
    const int saved = errno;
    if (all.host.is_script()) all.host.settle(lock);
    errno = saved;
  }
  SocketPtr socket(int fd) const {
    const auto found = all.sockets.find(fd);
    return found == all.sockets.end() ? nullptr : found->second;
  }
  [[nodiscard]] Nanos deadline(Nanos timeout) const {
    return timeout == Nanos{} ? Nanos::max() : all.host.now() + timeout;
  }
  Adapter& all;
  Host::Lock lock;
};

inline bool is_over(Socket& s) { return s.tcp.state() == engine::tcp::State::closed; }

// options.cc
int call_getsockopt(void* data, int fd, int level, int name, void* to, socklen_t* length);
int call_setsockopt(void* data, int fd, int level, int name, const void* from, socklen_t length);
// readiness.cc
bool can_read(Socket& s);
int call_poll(void* data, pollfd* fds, nfds_t count, int timeout_ms);
int call_epoll_create(void* data, int size);
int call_epoll_ctl(void* data, int set_fd, int operation, int fd, epoll_event* event);
int call_epoll_wait(void* data, int set_fd, epoll_event* out, int most, int timeout_ms);

}  // namespace ringsock::packetdrill
