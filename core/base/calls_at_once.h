// Calls on sockets that never wait.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace ringsock {

// Used instead of libc's functions of these names, which spend two locked instructions and some eighty others on being
// cancellation points. They return -1 and set errno as those do.

inline ssize_t send_at_once(int fd, const void* data, std::size_t bytes, int flags) {
  return ::syscall(SYS_sendto, fd, data, bytes, flags | MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
}
inline ssize_t sendmsg_at_once(int fd, const msghdr& message, int flags) {
  return ::syscall(SYS_sendmsg, fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
}
inline ssize_t recv_at_once(int fd, void* data, std::size_t bytes, int flags) {
  return ::syscall(SYS_recvfrom, fd, data, bytes, flags | MSG_DONTWAIT, nullptr, nullptr);
}
inline ssize_t recvmsg_at_once(int fd, msghdr& message, int flags) {
  return ::syscall(SYS_recvmsg, fd, &message, flags | MSG_DONTWAIT);
}

}  // namespace ringsock
