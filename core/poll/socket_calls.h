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

/// Returns whether the call may block. Reads of an error queue never do.
inline bool may_block(const Endpoint& endpoint, int flags) {
  return !endpoint.is_nonblocking() && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0;
}
/// Complete receive() and send(), and may block, after a first attempt that was not sufficient.
Result<ssize_t> receive_more(Lookup& socket, void* data, std::size_t length, int flags, Result<ssize_t> first);
Result<ssize_t> send_more(Lookup& socket, const void* data, std::size_t length, int flags, Result<ssize_t> first);
Result<ssize_t> receive_more(Lookup& socket, msghdr& message, int flags, Result<ssize_t> first);
Result<ssize_t> send_more(Lookup& socket, const msghdr& message, int flags, Result<ssize_t> first);

/// Returns whether a call that may block is complete with `received` bytes.
inline bool is_enough(const Endpoint& endpoint, std::size_t received, int flags) {
  return (flags & MSG_WAITALL) == 0 && received >= endpoint.receive_low_mark();
}
/// recv(2): with MSG_WAITALL continues until all bytes have arrived, the stream ends, or an error or signal occurs;
/// without it until SO_RCVLOWAT is reached.
inline Result<ssize_t> receive(Lookup& socket, void* data, std::size_t length, int flags) {
  auto received = socket->receive_bytes(data, length, flags);
  const auto bytes = received ? static_cast<std::size_t>(*received) : 0;
  const bool is_done = received && (is_enough(*socket, bytes, flags) || bytes >= length);
  if (!is_done && may_block(*socket, flags)) [[unlikely]]
    received = receive_more(socket, data, length, flags, received);
  return received;
}
/// recvmsg(2). `message.msg_iov` itself is not changed.
inline Result<ssize_t> receive(Lookup& socket, msghdr& message, int flags) {
  const auto received = socket->receive(message, flags);
  if (received && is_enough(*socket, static_cast<std::size_t>(*received), flags)) [[likely]]
    return received;
  return receive_more(socket, message, flags, received);
}
/// send(2): a blocking call returns when all bytes have been accepted, or returns the number accepted when an error or
/// signal ended it.
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
/// Returns the errno value for which this thread's latest receive_more() or send_more() stopped after it had moved a
/// part of the bytes. 0 when it moved all, or none, or came to the end of the stream.
int why_only_a_part();
/// connect(2). When SO_SNDTIMEO expires it fails with EINPROGRESS, and the connect goes on.
Status connect(Lookup& socket, const sockaddr* address, socklen_t length);
/// accept4(2). A thread that waits while another one closes the listener gets EINVAL.
Result<int> accept(Lookup& socket, SocketAddress& peer, int flags);
/// What becomes of calls that wait on a connection in other threads while its last descriptor is closed.
enum class WaitingCalls : std::uint8_t {
  end,    ///< they see the end
  go_on,  ///< as for close(2): they keep the connection open
};
/// close(2) of an endpoint's descriptor: removes it from the table, lingers, closes. Error: EBADF when it is not in the
/// table.
Status close_descriptor(int fd, WaitingCalls calls);
/// Closes many, as close(2) does. Descriptors that are not in the table stay open.
void close_descriptors(std::span<const int> fds);

}  // namespace ringsock::runtime
