#include "core/runtime/socket_calls.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <vector>

#include "core/base/no_cancellation.h"
#include "core/runtime/wait.h"

namespace ringsock::runtime {

namespace {

/// EPIPE comes with a signal, to the calling thread, unless it was asked away.
Result<ssize_t> with_sigpipe(Result<ssize_t> sent, int flags) {
  if (!sent && sent.error().code == EPIPE && (flags & MSG_NOSIGNAL) == 0) ::raise(SIGPIPE);
  return sent;
}

/// A copy of a message whose parts can be used up.
class RestOfMessage {
 public:
  explicit RestOfMessage(const msghdr& message)
      : parts_(message.msg_iov, message.msg_iov + std::min<std::size_t>(message.msg_iovlen, IOV_MAX)),
        message_(message) {
    update();
  }
  void advance(std::size_t bytes) {
    for (iovec& part : parts_) {
      const std::size_t step = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + step;
      part.iov_len -= step;
      bytes -= step;
    }
  }
  [[nodiscard]] std::size_t left() const {
    std::size_t total = 0;
    for (const iovec& part : parts_) total += part.iov_len;
    return total;
  }
  msghdr& get() { return message_; }

 private:
  void update() { message_.msg_iov = parts_.data(); }
  std::vector<iovec> parts_;
  msghdr message_;
};

/// Whether a receive wants all that it has room for (recv(2)).
bool wants_all(const Endpoint& endpoint, int flags) {
  return (flags & MSG_WAITALL) != 0 && (flags & MSG_PEEK) == 0 && !endpoint.is_datagram();
}

/// Repeats `attempt(done)` until it has moved `total` bytes. Bytes moved, or the error when there were none.
/// `attempt` answers the bytes it moved; 0 is the end of the stream.
template <class Attempt>
Result<ssize_t> until_complete(Endpoint& endpoint, std::uint32_t interest, Nanos deadline, std::size_t total,
                               std::size_t done, Attempt attempt) {
  while (done < total) {
    auto moved = retry_until_ready(
        endpoint, interest, deadline, [&] { return attempt(done); }, done == 0);
    if (!moved) {
      if (done == 0) return moved;
      endpoint.keep_error(moved.error().code);
      break;
    }
    if (*moved == 0) break;
    done += static_cast<std::size_t>(*moved);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

Result<ssize_t> receive_more(Lookup& socket, void* data, std::size_t length, int flags, Result<ssize_t> first) {
  const bool all = wants_all(*socket, flags);
  if (first) {
    if (!all || *first == 0) return first;
  } else if (first.error().code != EAGAIN) {
    return first;
  }
  socket.pin();
  const Nanos deadline = deadline_after(socket->receive_timeout());
  if (!all) {
    return retry_until_ready(*socket, EPOLLIN, deadline, [&] { return socket->receive_bytes(data, length, flags); });
  }
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  return until_complete(*socket, EPOLLIN, deadline, length, done, [&](std::size_t so_far) {
    return socket->receive_bytes(static_cast<std::byte*>(data) + so_far, length - so_far, flags);
  });
}

Result<ssize_t> receive_more(Lookup& socket, msghdr& message, int flags, Result<ssize_t> first) {
  const bool all = wants_all(*socket, flags);
  if (!may_block(*socket, flags)) return first;
  if (first ? !all || *first == 0 : first.error().code != EAGAIN) return first;
  socket.pin();
  const Nanos deadline = deadline_after(socket->receive_timeout());
  if (!all) {
    return retry_until_ready(*socket, EPOLLIN, deadline, [&] { return socket->receive(message, flags); });
  }
  RestOfMessage rest(message);
  const std::size_t total = rest.left();
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  rest.advance(done);
  return until_complete(*socket, EPOLLIN, deadline, total, done, [&](std::size_t) {
    auto moved = socket->receive(rest.get(), flags);
    if (moved) rest.advance(static_cast<std::size_t>(*moved));
    return moved;
  });
}

Result<ssize_t> send_more(Lookup& socket, const void* data, std::size_t length, int flags, Result<ssize_t> first) {
  if (!first && first.error().code != EAGAIN) return with_sigpipe(first, flags);
  if (!may_block(*socket, flags)) return first;
  socket.pin();
  const Nanos deadline = deadline_after(socket->send_timeout());
  if (socket->is_datagram()) {
    return with_sigpipe(
        retry_until_ready(*socket, EPOLLOUT, deadline, [&] { return socket->send_bytes(data, length, flags); }), flags);
  }
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  auto sent = until_complete(*socket, EPOLLOUT, deadline, length, done, [&](std::size_t so_far) {
    return socket->send_bytes(static_cast<const std::byte*>(data) + so_far, length - so_far, flags);
  });
  return with_sigpipe(sent, flags);
}

Result<ssize_t> send_more(Lookup& socket, const msghdr& message, int flags, Result<ssize_t> first) {
  if (!first && first.error().code != EAGAIN) return with_sigpipe(first, flags);
  if (!may_block(*socket, flags)) return first;
  if (socket->is_datagram()) {
    if (first) return first;
    socket.pin();
    return with_sigpipe(retry_until_ready(*socket, EPOLLOUT, deadline_after(socket->send_timeout()),
                                          [&] { return socket->send(message, flags); }),
                        flags);
  }
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  RestOfMessage rest(message);
  const std::size_t total = rest.left();
  if (first && done >= total) return first;
  rest.advance(done);
  socket.pin();
  auto sent = until_complete(*socket, EPOLLOUT, deadline_after(socket->send_timeout()), total, done, [&](std::size_t) {
    auto moved = socket->send(rest.get(), flags);
    if (moved) rest.advance(static_cast<std::size_t>(*moved));
    return moved;
  });
  return with_sigpipe(sent, flags);
}

Status connect(Lookup& socket, const sockaddr* address, socklen_t length) {
  Status first = socket->connect(address, length);
  if (first || first.error().code != EINPROGRESS || socket->is_nonblocking()) return first;
  socket.pin();
  Status done = retry_until_ready(*socket, EPOLLOUT, deadline_after(socket->send_timeout()), [&] {
    Status again = socket->connect(address, length);
    if (!again && again.error().code == EALREADY) return Status(Error{EAGAIN, "connect"});
    if (!again && again.error().code == EISCONN) return ok();  // another thread saw it first
    return again;
  });
  if (!done && done.error().code == EAGAIN) return Error{EINPROGRESS, "connect"};
  return done;
}

Result<int> accept(Lookup& socket, SocketAddress& peer, int flags) {
  auto first = socket->accept(peer, flags);
  if (first || first.error().code != EAGAIN || socket->is_nonblocking()) return first;
  socket.pin();
  return retry_until_ready(*socket, EPOLLIN, deadline_after(socket->receive_timeout()),
                           [&] { return socket->accept(peer, flags); });
}

namespace {
/// The rest of close(2), after `fd` was taken out of the table.
void finish_close(Endpoint& endpoint, int fd) {
  if (endpoint.has_descriptors()) {
    endpoint.descriptor_closed(fd);
  } else {
    const Nanos linger = endpoint.linger();
    endpoint.close();
    if (linger > Nanos::zero()) {
      const NoCancellation until_closed;
      [[maybe_unused]] const Status drained =
          retry_until_ready(endpoint, EPOLLOUT, deadline_after(linger), [&]() -> Status {
            return endpoint.is_drained() ? ok() : Status(Error{EAGAIN, "close"});
          });
    }
  }
  if (!endpoint.owns_descriptor(fd)) ::close(fd);
}
}  // namespace

Status close_descriptor(int fd) {
  Ref endpoint = fd_table().remove(fd);
  if (!endpoint) return Error{EBADF, "close"};
  finish_close(*endpoint, fd);
  return ok();
}

void close_descriptors(std::span<const int> fds) {
  std::vector<Ref> endpoints = fd_table().remove(fds);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (!endpoints[i]) continue;
    finish_close(*endpoints[i], fds[i]);
    endpoints[i] = {};
  }
}

}  // namespace ringsock::runtime
