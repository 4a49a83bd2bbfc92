// Receives and sends for the application, and answers EFAULT for memory that does not exist.
#pragma once

#include "core/base/user_memory.h"
#include "preload/route.h"

namespace ringsock::preload {

/// Returns whether `bytes` are all that the parts of `message` hold.
bool is_all(const msghdr& message, ssize_t bytes);

// In the order of recvmsg(2) and sendmsg(2): `message`, its parts and the destination's name are checked first. The
// memory to receive into is checked once there is something to store, so a receive into bad memory waits, too, and
// loses the datagram.
Result<ssize_t> receive_checked(Lookup& socket, msghdr* message, int flags);
Result<ssize_t> send_checked(Lookup& socket, const msghdr* message, int flags);

/// Receives into memory of which a part does not exist.
Result<ssize_t> receive_into_bad(Lookup& socket, void* data, std::size_t length, int flags);

/// Answers a send from memory of which a part does not exist. As in the kernel, what the connection has to say (its
/// end, its error, that it has no room) comes before EFAULT.
Error send_from_bad(Lookup& socket, const void* data, std::size_t length, int flags);

[[gnu::always_inline]] inline Result<ssize_t> receive_checked(Lookup& socket, void* data, std::size_t length,
                                                              int flags) {
  if (!is_near_on_stack(data, length) && !is_writable(data, length)) [[unlikely]]
    return receive_into_bad(socket, data, length, flags);
  return runtime::receive(socket, data, length, flags);
}
[[gnu::always_inline]] inline Result<ssize_t> send_checked(Lookup& socket, const void* data, std::size_t length,
                                                           int flags) {
  if (!is_near_on_stack(data, length) && !is_readable(data, length)) [[unlikely]]
    return send_from_bad(socket, data, length, flags);
  return runtime::send(socket, data, length, flags);
}

// Move the remaining bytes by the kernel when a blocking call's connection has moved to the kernel while the call ran.
// `done` is the number of bytes that went by the ring. Each returns the sum of both.
ssize_t receive_rest(int fd, Lookup& socket, void* data, std::size_t length, int flags, ssize_t done);
ssize_t send_rest(int fd, Lookup& socket, const void* data, std::size_t length, int flags, ssize_t done);
ssize_t receive_rest(int fd, Lookup& socket, const msghdr& message, int flags, ssize_t done);
ssize_t send_rest(int fd, Lookup& socket, const msghdr& message, int flags, ssize_t done);

/// Completes a call that has moved only a part of its bytes.
[[gnu::always_inline]] inline Result<ssize_t> with_rest_received(int fd, Lookup& socket, void* data, std::size_t length,
                                                                 int flags, Result<ssize_t> got) {
  const bool is_part = (flags & MSG_WAITALL) != 0 && got && *got > 0 && static_cast<std::size_t>(*got) < length;
  return is_part ? Result<ssize_t>(receive_rest(fd, socket, data, length, flags, *got)) : got;
}
[[gnu::always_inline]] inline Result<ssize_t> with_rest_sent(int fd, Lookup& socket, const void* data,
                                                             std::size_t length, int flags, Result<ssize_t> sent) {
  const bool is_part = sent && *sent > 0 && static_cast<std::size_t>(*sent) < length;
  return is_part ? Result<ssize_t>(send_rest(fd, socket, data, length, flags, *sent)) : sent;
}
inline Result<ssize_t> with_rest_received(int fd, Lookup& socket, const msghdr& message, int flags,
                                          Result<ssize_t> got) {
  const bool may_be_part = (flags & MSG_WAITALL) != 0 && got && *got > 0;
  return may_be_part ? Result<ssize_t>(receive_rest(fd, socket, message, flags, *got)) : got;
}
/// send_rest() itself finds out whether bytes remain, by adding up the lengths of the parts.
inline Result<ssize_t> with_rest_sent(int fd, Lookup& socket, const msghdr& message, int flags, Result<ssize_t> sent) {
  return sent && *sent > 0 ? Result<ssize_t>(send_rest(fd, socket, message, flags, *sent)) : sent;
}

/// Carry out recvfrom(2) with room for an address, and sendto(2) with an address.
Result<ssize_t> receive_from_checked(Lookup& socket, void* data, std::size_t length, int flags, sockaddr* address,
                                     socklen_t* address_length);
Result<ssize_t> send_to_checked(Lookup& socket, const void* data, std::size_t length, int flags,
                                const sockaddr* address, socklen_t address_length);

/// Checks an address as the kernel does in connect(2), bind(2) and sendmsg(2).
inline Status check_address(const sockaddr* address, socklen_t length) {
  if (length > sizeof(sockaddr_storage)) return Error{EINVAL, "address: length"};
  if (!is_readable(address, length)) return Error{EFAULT, "address"};
  return ok();
}
/// Checks the room for an address as the kernel does: after the call has done its work, so an error means that the
/// result is lost.
inline Status check_room_for_address(const sockaddr* address, const socklen_t* length) {
  if (!are_writable(length)) return Error{EFAULT, "address: length"};
  if (static_cast<int>(*length) < 0) return Error{EINVAL, "address: length"};
  if (!is_writable(address, std::min<socklen_t>(*length, sizeof(sockaddr_in)))) return Error{EFAULT, "address"};
  return ok();
}

}  // namespace ringsock::preload
