// The socket calls with the blocking behaviour of Linux sockets, over any endpoint. Shared by the C edges.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>

#include "core/base/result.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {

using Lookup = FdTable::Lookup;

// Each takes the look-up of its descriptor; pins it only when it has to sleep. Blocking follows O_NONBLOCK,
// MSG_DONTWAIT, SO_RCVTIMEO and SO_SNDTIMEO as in socket(7). An EPIPE raises SIGPIPE unless MSG_NOSIGNAL. Threads: any.

/// An error queue is never waited for.
inline bool may_block(const Endpoint& endpoint, int flags) {
  return !endpoint.is_nonblocking() && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0;
}
/// The rest of receive(), which may block, and of send(), after a first attempt that did not do.
Result<ssize_t> receive_more(Lookup& socket, void* data, std::size_t length, int flags, Result<ssize_t> first);
Result<ssize_t> send_more(Lookup& socket, const void* data, std::size_t length, int flags, Result<ssize_t> first);
Result<ssize_t> receive_more(Lookup& socket, msghdr& message, int flags, Result<ssize_t> first);
Result<ssize_t> send_more(Lookup& socket, const msghdr& message, int flags, Result<ssize_t> first);

/// recv(2): with MSG_WAITALL goes on until all bytes are there, the stream ends, an error or a signal comes.
inline Result<ssize_t> receive(Lookup& socket, void* data, std::size_t length, int flags) {
  auto received = socket->receive_bytes(data, length, flags);
  const bool is_done = received && ((flags & MSG_WAITALL) == 0 || static_cast<std::size_t>(*received) >= length);
  if (!is_done && may_block(*socket, flags)) [[unlikely]]
    received = receive_more(socket, data, length, flags, received);
  return received;
}
/// recvmsg(2). `message.msg_iov` itself is not changed.
inline Result<ssize_t> receive(Lookup& socket, msghdr& message, int flags) {
  const auto received = socket->receive(message, flags);
  if (received && (flags & MSG_WAITALL) == 0) [[likely]]
    return received;
  return receive_more(socket, message, flags, received);
}
/// send(2): a blocking call returns when all bytes have been taken, or what was taken when an error or signal ended it.
inline Result<ssize_t> send(Lookup& socket, const void* data, std::size_t length, int flags) {
  auto sent = socket->send_bytes(data, length, flags);
  const bool is_done = sent && static_cast<std::size_t>(*sent) >= length;
  if (!is_done) [[unlikely]]
    sent = send_more(socket, data, length, flags, sent);
  return sent;
}
/// sendmsg(2).
inline Result<ssize_t> send(Lookup& socket, const msghdr& message, int flags) {
  const auto sent = socket->send(message, flags);
  if (sent && socket->is_datagram()) [[likely]]
    return sent;
  return send_more(socket, message, flags, sent);
}
/// connect(2). A time-out of SO_SNDTIMEO answers EINPROGRESS; the connect goes on.
Status connect(Lookup& socket, const sockaddr* address, socklen_t length);
/// accept4(2).
Result<int> accept(Lookup& socket, SocketAddress& peer, int flags);
/// close(2) of a descriptor of ours: takes it out of the table, lingers, closes. Error: EBADF when it is not ours.
Status close_descriptor(int fd);
/// The same for many; those that are not ours stay open.
void close_descriptors(std::span<const int> fds);

}  // namespace ringsock::runtime
