// A table of the kernel's or of rsockets' socket calls.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <utility>

#include "core/base/result.h"

namespace ringsock::tools {

struct SocketCalls {
  bool is_rsockets;
  int (*socket)(int domain, int type, int protocol);
  int (*bind)(int fd, const sockaddr* address, socklen_t length);
  int (*listen)(int fd, int backlog);
  int (*accept)(int fd, sockaddr* address, socklen_t* length);
  int (*connect)(int fd, const sockaddr* address, socklen_t length);
  int (*shutdown)(int fd, int how);
  int (*close)(int fd);
  ssize_t (*recv)(int fd, void* buffer, std::size_t length, int flags);
  ssize_t (*send)(int fd, const void* buffer, std::size_t length, int flags);
  ssize_t (*recvfrom)(int fd, void* buffer, std::size_t length, int flags, sockaddr* address,
                      socklen_t* address_length);
  ssize_t (*sendto)(int fd, const void* buffer, std::size_t length, int flags, const sockaddr* address,
                    socklen_t address_length);
  int (*poll)(pollfd* fds, nfds_t count, int timeout_ms);
  int (*setsockopt)(int fd, int level, int name, const void* value, socklen_t length);
  int (*getsockopt)(int fd, int level, int name, void* value, socklen_t* length);
  int (*fcntl)(int fd, int command, ...);
};

const SocketCalls& kernel_sockets();
const SocketCalls& rsockets();

/// Owns one descriptor of either kind. Moves only.
class Socket {
 public:
  Socket() = default;
  Socket(const SocketCalls& calls, int fd) : calls_(&calls), fd_(fd) {}
  Socket(Socket&& other) noexcept : calls_(other.calls_), fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(calls_, other.calls_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const SocketCalls& calls() const { return *calls_; }
  void close();

  Status set_option(int level, int name, int value, const char* where) const;
  [[nodiscard]] Result<int> option(int level, int name, const char* where) const;
  Status set_nonblocking() const;
  /// Waits for an event of `events` or an error. Returns revents. A time-out of -1 means for ever. Error: ETIMEDOUT.
  [[nodiscard]] Result<short> wait(short events, int timeout_ms) const;

 private:
  const SocketCalls* calls_ = nullptr;
  int fd_ = -1;
};

/// Connects, and waits if the socket is non-blocking. Errors: as connect(2).
Status connect_socket(const Socket& socket, const sockaddr* address, socklen_t length);
/// Waits for a connection and accepts it. `peer` may be null.
Result<Socket> accept_socket(const Socket& listener, sockaddr_storage* peer);

}  // namespace ringsock::tools
