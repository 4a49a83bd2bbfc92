#include "tools/call_table.h"

#include <fcntl.h>
#include <rdma/rsocket.h>
#include <unistd.h>

namespace ringsock::tools {

const SocketCalls& kernel_sockets() {
  static constexpr SocketCalls kCalls{
      .is_rsockets = false,
      .socket = &::socket,
      .bind = &::bind,
      .listen = &::listen,
      .accept = &::accept,
      .connect = &::connect,
      .shutdown = &::shutdown,
      .close = &::close,
      .recv = &::recv,
      .send = &::send,
      .recvfrom = &::recvfrom,
      .sendto = &::sendto,
      .poll = &::poll,
      .setsockopt = &::setsockopt,
      .getsockopt = &::getsockopt,
      .fcntl = &::fcntl,
  };
  return kCalls;
}

const SocketCalls& rsockets() {
  static const SocketCalls kCalls{
      .is_rsockets = true,
      .socket = &::rsocket,
      .bind = &::rbind,
      .listen = &::rlisten,
      .accept = &::raccept,
      .connect = &::rconnect,
      .shutdown = &::rshutdown,
      .close = &::rclose,
      .recv = &::rrecv,
      .send = &::rsend,
      .recvfrom = &::rrecvfrom,
      .sendto = &::rsendto,
      .poll = &::rpoll,
      .setsockopt = &::rsetsockopt,
      .getsockopt = &::rgetsockopt,
      .fcntl = &::rfcntl,
  };
  return kCalls;
}

void Socket::close() {
  if (const int fd = std::exchange(fd_, -1); fd >= 0) calls_->close(fd);
}

Status Socket::set_option(int level, int name, int value, const char* where) const {
  if (calls_->setsockopt(fd_, level, name, &value, sizeof value) != 0) return Error::last(where);
  return ok();
}

Result<int> Socket::option(int level, int name, const char* where) const {
  int value = 0;
  socklen_t length = sizeof value;
  if (calls_->getsockopt(fd_, level, name, &value, &length) != 0) return Error::last(where);
  return value;
}

Status Socket::set_nonblocking() const {
  if (calls_->fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) return Error::last("fcntl");
  return ok();
}

Result<short> Socket::wait(short events, int timeout_ms) const {
  pollfd entry{.fd = fd_, .events = events, .revents = 0};
  int count = 0;
  do {
    count = calls_->poll(&entry, 1, timeout_ms);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return Error::last("poll");
  if (count == 0) return Error{ETIMEDOUT, "poll"};
  return entry.revents;
}

Status connect_socket(const Socket& socket, const sockaddr* address, socklen_t length) {
  if (socket.calls().connect(socket.fd(), address, length) == 0) return ok();
  if (errno != EINPROGRESS) return Error::last("connect");
  if (auto ready = socket.wait(POLLOUT, -1); !ready) return ready.error();
  const auto error = socket.option(SOL_SOCKET, SO_ERROR, "getsockopt SO_ERROR");
  if (!error) return error.error();
  if (*error != 0) return Error{*error, "connect"};
  return ok();
}

Result<Socket> accept_socket(const Socket& listener, sockaddr_storage* peer) {
  for (;;) {
    if (auto ready = listener.wait(POLLIN, -1); !ready) return ready.error();
    socklen_t length = sizeof *peer;
    const int fd = listener.calls().accept(listener.fd(), reinterpret_cast<sockaddr*>(peer), peer ? &length : nullptr);
    if (fd >= 0) return Socket(listener.calls(), fd);
    // The client that caused the wake-up may be gone again.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return Error::last("accept");
  }
}

}  // namespace ringsock::tools
