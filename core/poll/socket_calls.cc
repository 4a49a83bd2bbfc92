#include "core/poll/socket_calls.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <vector>

#include "core/base/no_cancellation.h"
#include "core/base/unique_fd.h"
#include "core/poll/rest_of_message.h"
#include "core/poll/thread_waits.h"
#include "core/poll/wait.h"

namespace ringsock::runtime {

namespace {

/// Raises SIGPIPE in the calling thread on EPIPE, unless MSG_NOSIGNAL is set.
Result<ssize_t> with_sigpipe(Result<ssize_t> sent, int flags) {
  if (!sent && sent.error().code == EPIPE && (flags & MSG_NOSIGNAL) == 0) ::raise(SIGPIPE);
  return sent;
}

/// Returns how many of `room` bytes a receive waits for.
std::size_t wanted(const Endpoint& endpoint, int flags, std::size_t room) {
  if ((flags & MSG_PEEK) != 0 || endpoint.is_datagram()) return 0;
  return (flags & MSG_WAITALL) != 0 ? room : std::min<std::size_t>(room, endpoint.receive_low_mark());
}

std::size_t room_of(const msghdr& message) {
  std::size_t total = 0;
  const std::size_t parts = std::min<std::size_t>(message.msg_iovlen, IOV_MAX);
  for (std::size_t i = 0; i < parts; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

/// Returns whether the first attempt completed the call.
bool is_done(const Result<ssize_t>& first, std::size_t wanted) {
  if (!first) return first.error().code != EAGAIN;
  return *first == 0 || static_cast<std::size_t>(*first) >= wanted;
}

/// Returns the answer of the first attempt of a receive that may block.
Result<ssize_t> keeping_time_limit(const Endpoint& endpoint, Result<ssize_t> first) {
  if (first || !has_due_calls()) return first;
  const Nanos deadline = deadline_after(endpoint.receive_timeout());
  return is_over(deadline) ? Error{EAGAIN, "receive: timed out"} : keeping(deadline, first);
}

/// Receives into a buffer or a message by `attempt(flags)`, which moves all that the call waits for. A peek for all
/// bytes that ends early shows those that there are.
template <class Attempt>
Result<ssize_t> at_one_go(Endpoint& endpoint, Nanos deadline, int flags, Attempt attempt) {
  auto received = keeping(deadline, retry_until_ready(endpoint, EPOLLIN, deadline, [&] { return attempt(flags); }));
  const bool is_early = !received && (received.error().code == EAGAIN || received.error().code == EINTR);
  if (!is_early || (flags & MSG_WAITALL) == 0) return received;
  const auto shown = attempt(flags | MSG_DONTWAIT);
  return shown ? shown : received;
}

/// Repeats `attempt(done)` until it has moved `total` bytes. Returns the bytes moved, or the error when there were
/// none. `attempt` returns the bytes that it moved, 0 at the end of the stream.
template <class Attempt>
Result<ssize_t> until_complete(Endpoint& endpoint, std::uint32_t interest, Nanos deadline, std::size_t total,
                               std::size_t done, Attempt attempt) {
  thread_waits.error_after_a_part = 0;
  while (done < total) {
    auto moved = retry_until_ready(
        endpoint, interest, deadline, [&] { return attempt(done); }, done == 0);
    if (!moved) {
      if (done == 0) return moved;
      thread_waits.error_after_a_part = moved.error().code;
      endpoint.keep_error(thread_waits.error_after_a_part);
      break;
    }
    if (*moved == 0) break;
    done += static_cast<std::size_t>(*moved);
  }
  return static_cast<ssize_t>(done);
}

/// As in the kernel, a receive without room for a byte has succeeded once it has waited, whatever ended the wait.
Result<ssize_t> unless_waited_for_nothing(const Endpoint& endpoint, std::size_t room, Result<ssize_t> received) {
  if (received || room != 0 || endpoint.is_datagram()) return received;
  const bool has_waited = received.error().code == EAGAIN || received.error().code == EINTR;
  return has_waited ? Result<ssize_t>(0) : received;
}

}  // namespace

int why_only_a_part() { return thread_waits.error_after_a_part; }

Result<ssize_t> receive_more(Lookup& socket, void* data, std::size_t length, int flags, Result<ssize_t> first) {
  const std::size_t total = wanted(*socket, flags, length);
  if (is_done(first, total)) return keeping_time_limit(*socket, first);
  socket.pin();
  if (socket->is_datagram()) {
    iovec part{data, length};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (const auto got = socket->receive_waiting(message, flags)) return *got;
  }
  const Nanos deadline = deadline_after(socket->receive_timeout());
  if (total <= 1) {
    const auto got =
        at_one_go(*socket, deadline, flags, [&](int how) { return socket->receive_bytes(data, length, how); });
    return unless_waited_for_nothing(*socket, length, got);
  }
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  return keeping(deadline, until_complete(*socket, EPOLLIN, deadline, total, done, [&](std::size_t so_far) {
                   return socket->receive_bytes(static_cast<std::byte*>(data) + so_far, length - so_far, flags);
                 }));
}

Result<ssize_t> receive_more(Lookup& socket, msghdr& message, int flags, Result<ssize_t> first) {
  if (!may_block(*socket, flags)) return first;
  if (!first && first.error().code != EAGAIN) return keeping_time_limit(*socket, first);
  const std::size_t total = wanted(*socket, flags, room_of(message));
  if (is_done(first, total)) return first;
  socket.pin();
  if (socket->is_datagram()) {
    if (const auto got = socket->receive_waiting(message, flags)) return *got;
  }
  const Nanos deadline = deadline_after(socket->receive_timeout());
  if (total <= 1) {
    const auto got = at_one_go(*socket, deadline, flags, [&](int how) { return socket->receive(message, how); });
    const auto answer = unless_waited_for_nothing(*socket, room_of(message), got);
    if (answer && !got) {  // as any receive of a stream
      message.msg_namelen = 0;
      message.msg_controllen = 0;
      message.msg_flags = flags & MSG_CMSG_CLOEXEC;
    }
    return answer;
  }
  RestOfMessage rest(message);
  const std::size_t done = first ? static_cast<std::size_t>(*first) : 0;
  rest.advance(done);
  const auto got = until_complete(*socket, EPOLLIN, deadline, total, done, [&](std::size_t) {
    auto moved = socket->receive(rest.get(), flags);
    if (moved) rest.advance(static_cast<std::size_t>(*moved));
    return moved;
  });
  if (got) rest.copy_answers_to(message);
  return keeping(deadline, got);
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

namespace {
/// An attempt of connect(2) or accept(2) takes system calls.
constexpr unsigned kStrideOfConnections = 1;
}  // namespace

Status connect(Lookup& socket, const sockaddr* address, socklen_t length) {
  note_connection();
  Status first = socket->connect(address, length);
  // EALREADY: an earlier connect(2) was interrupted.
  const bool is_under_way = !first && (first.error().code == EINPROGRESS || first.error().code == EALREADY);
  if (!is_under_way || socket->is_nonblocking()) return first;
  socket.pin();
  const auto attempt = [&] {
    Status again = socket->connect(address, length);
    if (!again && again.error().code == EALREADY) return Status(Error{EAGAIN, "connect"});
    if (!again && again.error().code == EISCONN) return ok();  // another thread saw it first
    return again;
  };
  Status done = retry_until_ready(*socket, EPOLLOUT, deadline_after(socket->send_timeout()), attempt, true,
                                  Spinning{kStrideOfConnections});
  if (!done && done.error().code == EAGAIN) return Error{EINPROGRESS, "connect"};
  return done;
}

namespace {
/// Returns whether the highest number that the process may have is free. Costs a fifth of a new descriptor.
bool is_highest_number_free() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0 || limit.rlim_cur > INT_MAX) return false;
  pollfd highest{static_cast<int>(limit.rlim_cur - 1), 0, 0};
  return ::poll(&highest, 1, 0) == 1 && (highest.revents & POLLNVAL) != 0;
}

/// accept(2) takes the number of the new descriptor before it waits. Errors: EMFILE, ENFILE.
Status check_free_number() {
  if (is_highest_number_free()) return ok();
  const UniqueFd number(::eventfd(0, EFD_CLOEXEC));
  return number ? ok() : Status(Error::last("accept"));
}

/// A listener has a deadline while a client has connected and not sent its request. Where that takes longer than the
/// microseconds for which the listener itself waits, the client is not running: probably this thread has its CPU.
bool has_half_made_client(Endpoint& listener) { return listener.deadline() != Nanos::max(); }
constexpr Spinning kForClients{kStrideOfConnections, has_half_made_client};
}  // namespace

Result<int> accept(Lookup& socket, SocketAddress& peer, int flags) {
  note_connection();
  auto first = socket->accept(peer, flags);
  if (first || first.error().code != EAGAIN || socket->is_nonblocking()) return first;
  if (const Status free = check_free_number(); !free) return free.error();
  socket.pin();
  auto accepted = wait_until_ready(
      first, *socket, EPOLLIN, deadline_after(socket->receive_timeout()), [&] { return socket->accept(peer, flags); },
      true, kForClients);
  note_connection();
  // Closed meanwhile: all who wait hear the same, at whichever step of the close they are woken.
  if (!accepted && accepted.error().code == EBADF) return Error{EINVAL, "accept: closed meanwhile"};
  return accepted;
}

namespace {
/// Completes close(2) after `fd` was removed from the table.
void finish_close(Endpoint& endpoint, int fd, WaitingCalls calls) {
  if (endpoint.has_descriptors()) {
    endpoint.descriptor_closed(fd);
  } else if (calls == WaitingCalls::end || !Calls::keep(endpoint, fd)) {
    const Nanos linger = endpoint.linger();
    endpoint.retire();
    if (linger > Nanos::zero()) {
      const NoCancellation until_closed;
      [[maybe_unused]] const Status drained =
          retry_until_ready(endpoint, EPOLLOUT, deadline_after(linger), [&]() -> Status {
            return endpoint.is_drained() ? ok() : Status(Error{EAGAIN, "close"});
          });
    }
  }
  // Else its destructor does.
  if (endpoint.owns_descriptor(fd)) return;
  ::close(fd);
  fd_table().end_close(fd);
}
}  // namespace

Status close_descriptor(int fd, WaitingCalls calls) {
  Ref endpoint = fd_table().begin_close(fd);
  if (!endpoint) return Error{EBADF, "close"};
  finish_close(*endpoint, fd, calls);
  return ok();
}

void close_descriptors(std::span<const int> fds) {
  std::vector<Ref> endpoints = fd_table().begin_close(fds);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (!endpoints[i]) continue;
    finish_close(*endpoints[i], fds[i], WaitingCalls::go_on);
    endpoints[i] = {};
  }
}

}  // namespace ringsock::runtime
