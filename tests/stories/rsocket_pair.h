// Two connected rsockets in one process, and the little helpers that stories about them need.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringsock::stories {

/// A descriptor of an rsocket, closed with rclose().
class Rsocket {
 public:
  Rsocket() = default;
  explicit Rsocket(int fd) : fd_(fd) {}
  Rsocket(Rsocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Rsocket& operator=(Rsocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Rsocket() { close(); }
  [[nodiscard]] int fd() const { return fd_; }
  operator int() const { return fd_; }
  void close() {
    if (fd_ >= 0) rclose(std::exchange(fd_, -1));
  }
  /// Sends all of `text`; fails the test otherwise.
  void say(std::string_view text) const {
    ASSERT_EQ(rsend(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size())) << strerror(errno);
  }
  /// One rrecv of at most `most` bytes. "<error NAME>" when it fails, "" at the end.
  [[nodiscard]] std::string hear(std::size_t most = 4096, int flags = 0) const {
    std::string text(most, '\0');
    const ssize_t got = rrecv(fd_, text.data(), most, flags);
    if (got < 0) return std::string("<") + strerrorname_np(errno) + ">";
    text.resize(static_cast<std::size_t>(got));
    return text;
  }

 private:
  int fd_ = -1;
};

/// An address with room for both families.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] std::uint16_t port() const {
    return storage.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port)
                                         : ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  [[nodiscard]] std::string host() const {
    char text[INET6_ADDRSTRLEN] = "?";
    if (storage.ss_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text, sizeof text);
    } else if (storage.ss_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, text, sizeof text);
    }
    return text;
  }
};

inline Address address_of(const char* host, std::uint16_t port = 0) {
  Address address;
  auto* in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host, &in4->sin_addr) == 1) {
    in4->sin_family = AF_INET;
    in4->sin_port = htons(port);
    address.length = sizeof *in4;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, host, &in6->sin6_addr), 1) << host;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    address.length = sizeof *in6;
  }
  return address;
}

inline Address local_name(int fd) {
  Address address;
  EXPECT_EQ(rgetsockname(fd, address.get(), &address.length), 0) << strerror(errno);
  return address;
}

inline Address peer_name(int fd) {
  Address address;
  EXPECT_EQ(rgetpeername(fd, address.get(), &address.length), 0) << strerror(errno);
  return address;
}

inline void set_int(int fd, int level, int name, int value) {
  ASSERT_EQ(rsetsockopt(fd, level, name, &value, sizeof value), 0) << strerror(errno);
}

inline int get_int(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(rgetsockopt(fd, level, name, &value, &length), 0) << strerror(errno);
  return value;
}

/// A listener on a free port of `host`.
struct Listener {
  explicit Listener(const char* host = "127.0.0.1", int backlog = 16) : name(address_of(host)) {
    socket = Rsocket(rsocket(name.storage.ss_family, SOCK_STREAM, 0));
    EXPECT_GE(socket.fd(), 0) << strerror(errno);
    EXPECT_EQ(rbind(socket, name.get(), name.length), 0) << strerror(errno);
    EXPECT_EQ(rlisten(socket, backlog), 0) << strerror(errno);
    name = local_name(socket);
  }
  Rsocket accept() {
    Rsocket accepted(raccept(socket, nullptr, nullptr));
    EXPECT_GE(accepted.fd(), 0) << strerror(errno);
    return accepted;
  }
  Rsocket socket;
  Address name;
};

/// A client connected to `listener`, by a blocking connect.
inline Rsocket connect_to(Listener& listener) {
  Rsocket client(rsocket(listener.name.storage.ss_family, SOCK_STREAM, 0));
  EXPECT_EQ(rconnect(client, listener.name.get(), listener.name.length), 0) << strerror(errno);
  return client;
}

/// Alice connected, Bob accepted.
struct Pair {
  Pair() : Pair(Listener()) {}
  explicit Pair(Listener listener) {
    alice = connect_to(listener);
    bob = listener.accept();
  }
  Rsocket alice;
  Rsocket bob;
};

}  // namespace ringsock::stories
