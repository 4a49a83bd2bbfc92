#include "tools/rcopy_protocol.h"

#include <poll.h>

namespace ringsock::tools {

namespace {

/// Waits until the socket has `event` if a call that failed with errno should then be repeated.
Status wait_to_retry(const Socket& socket, short event, int timeout_ms, const char* where) {
  if (errno == EINTR) return ok();
  if (errno != EAGAIN) return Error::last(where);
  if (auto ready = socket.wait(event, timeout_ms); !ready) return ready.error();
  return ok();
}

}  // namespace

Status RcopyStream::send_all(std::span<const std::byte> data) const {
  while (!data.empty()) {
    const ssize_t count = socket_.calls().send(socket_.fd(), data.data(), data.size(), MSG_DONTWAIT);
    if (count >= 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (auto retry = wait_to_retry(socket_, POLLOUT, idle_timeout_ms_, "send"); !retry) {
      return retry;
    }
  }
  return ok();
}

Result<std::size_t> RcopyStream::receive_some(std::span<std::byte> out) const {
  for (;;) {
    const ssize_t count = socket_.calls().recv(socket_.fd(), out.data(), out.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0) return Error{ECONNRESET, "recv: the peer closed the connection"};
    if (auto retry = wait_to_retry(socket_, POLLIN, idle_timeout_ms_, "recv"); !retry) return retry.error();
  }
}

Status RcopyStream::receive_all(std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto count = receive_some(out);
    if (!count) return count.error();
    out = out.subspan(*count);
  }
  return ok();
}

}  // namespace ringsock::tools
