// Sockets of libc, as any program uses them. The tests here run twice: on the kernel's sockets, which shows that they
// are right, and with librspreload.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/raw_syscall.h"

namespace ringsock::preload_tests {

/// Whether librspreload is there.
inline bool preloaded() { return std::getenv("RINGSOCK_TEST_PRELOADED") != nullptr; }

/// Returns errno of a call that failed, 0 for one that did not.
inline int error_of(ssize_t result) { return result < 0 ? errno : 0; }

/// Returns SO_ERROR, which the socket forgets.
inline int socket_error(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  return error;
}

/// A descriptor that is closed by libc's close().
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int release() { return std::exchange(fd_, -1); }
  operator int() const { return fd_; }

 private:
  int fd_ = -1;
};

/// What the kernel has under the number: AF_UNIX is a ring's doorbell.
inline int kernels_domain(int fd) {
  int domain = -1;
  socklen_t length = sizeof domain;
  raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return domain;
}
inline bool is_on_ring(int fd) { return kernels_domain(fd) == AF_UNIX; }

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  static Address loopback(int family, std::uint16_t port) {
    Address out;
    if (family == AF_INET) {
      auto& in = reinterpret_cast<sockaddr_in&>(out.storage);
      in.sin_family = AF_INET;
      in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      in.sin_port = htons(port);
      out.length = sizeof in;
    } else {
      auto& in = reinterpret_cast<sockaddr_in6&>(out.storage);
      in.sin6_family = AF_INET6;
      in.sin6_addr = in6addr_loopback;
      in.sin6_port = htons(port);
      out.length = sizeof in;
    }
    return out;
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] std::uint16_t port() const {
    return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                                              : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  }
};

inline Address name_of(int fd) {
  Address out;
  out.length = sizeof out.storage;
  EXPECT_EQ(::getsockname(fd, out.get(), &out.length), 0) << std::strerror(errno);
  return out;
}
inline Address peer_of(int fd) {
  Address out;
  out.length = sizeof out.storage;
  EXPECT_EQ(::getpeername(fd, out.get(), &out.length), 0) << std::strerror(errno);
  return out;
}

/// A listener on loopback with a port of the kernel's choice.
inline Fd listening(int family = AF_INET, int type_flags = 0) {
  Fd fd(::socket(family, SOCK_STREAM | type_flags, 0));
  Address any = Address::loopback(family, 0);
  EXPECT_EQ(::bind(fd, any.get(), any.length), 0) << std::strerror(errno);
  EXPECT_EQ(::listen(fd, 16), 0) << std::strerror(errno);
  return fd;
}

inline Fd connected_to(int listener) {
  Address there = name_of(listener);
  Fd fd(::socket(there.storage.ss_family, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(fd, there.get(), there.length), 0) << std::strerror(errno);
  return fd;
}

/// A client that takes part, or one of the kernel's.
inline Fd client_of(int listener, bool takes_part) {
  if (takes_part) return connected_to(listener);
  Address there = name_of(listener);
  Fd fd(static_cast<int>(raw_syscall(SYS_socket, there.storage.ss_family, SOCK_STREAM, 0)));
  EXPECT_EQ(raw_syscall(SYS_connect, int(fd), there.get(), there.length), 0);
  return fd;
}

/// Alice connected, Bob accepted her.
struct Pair {
  Fd alice, bob;
};
inline Pair connected_pair(int family = AF_INET) {
  const Fd listener = listening(family);
  Pair out;
  out.alice = connected_to(listener);
  out.bob = Fd(::accept(listener, nullptr, nullptr));
  EXPECT_GE(out.bob, 0) << std::strerror(errno);
  EXPECT_EQ(is_on_ring(out.alice), preloaded());
  EXPECT_EQ(is_on_ring(out.bob), preloaded());
  return out;
}

/// Reads until `size` bytes or the end.
inline std::string read_all(int fd, std::size_t size) {
  std::string out(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(fd, out.data() + done, size - done);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  out.resize(done);
  return out;
}

/// A message of one part; `part` must outlive it.
inline msghdr message_of(iovec& part) {
  msghdr out{};
  out.msg_iov = &part;
  out.msg_iovlen = 1;
  return out;
}

inline short poll_once(int fd, short events, int timeout = 0) {
  pollfd entry{fd, events, 0};
  return ::poll(&entry, 1, timeout) > 0 ? entry.revents : short{0};
}

}  // namespace ringsock::preload_tests
