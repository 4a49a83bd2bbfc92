// What a socket with a way asks of the kernel's socket under its descriptor.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/base/result.h"

namespace ringsock::transports {

/// Sets O_NONBLOCK of a kernel socket.
void set_kernel_nonblocking(int fd, bool on);
/// Returns the EPOLL* conditions that hold now. Leaves errno as it is.
[[nodiscard]] std::uint32_t kernel_events(int fd) noexcept;
/// Returns the state of a TCP socket of the kernel, by the numbers of <netinet/tcp.h>; TCP_CLOSE for other files.
std::uint8_t tcp_state(int fd) noexcept;
/// Returns whether a TCP socket of the kernel listens, connects or is connected. Leaves errno as it is.
[[nodiscard]] bool is_in_use(int fd) noexcept;
/// connect(2) for the application: a call that blocks can be cancelled, which the wrapped connect() cannot.
Status connect_as_application(int fd, const sockaddr* address, socklen_t length);
/// Returns whether the loopback interface is down, as it is in a new network namespace. The kernel then says that the
/// network is unreachable.
[[nodiscard]] bool is_loopback_down(int fd);

}  // namespace ringsock::transports
