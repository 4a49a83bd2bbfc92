// The protocol of a kernel socket.
#pragma once

#include <sys/socket.h>

namespace ringsock {

/// Returns whether `fd` is a socket of that protocol (SO_PROTOCOL), e.g. IPPROTO_TCP. Changes errno.
inline bool has_protocol(int fd, int protocol) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &length) == 0 && value == protocol;
}

}  // namespace ringsock
