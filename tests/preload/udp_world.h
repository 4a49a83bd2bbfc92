// UDP sockets by their plain libc names. The stories are the same for the kernel's sockets and for sockets with rings;
// under the preload library a story can also make sure that a ring carries what it is about.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/support/raw_syscall.h"

namespace ringsock::preload_tests {

inline bool has_rings() { return std::getenv("RINGSOCK_TEST_PRELOADED") != nullptr; }

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// A UDP socket, bound to the loopback address unless told otherwise.
class Udp {
 public:
  enum class Bound : bool { no, yes };
  explicit Udp(Bound bound = Bound::yes, int type = 0, std::uint16_t port = 0)
      : fd_(::socket(AF_INET, SOCK_DGRAM | type, 0)) {
    const sockaddr_in address = loopback(port);
    if (bound == Bound::no) return;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << errno;
  }
  explicit Udp(int fd) : fd_(fd) {}
  Udp(Udp&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Udp& operator=(Udp&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Udp(const Udp&) = delete;
  Udp& operator=(const Udp&) = delete;
  ~Udp() { close(); }
  operator int() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  [[nodiscard]] sockaddr_in name() const {
    sockaddr_in name{};
    socklen_t length = sizeof name;
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length), 0);
    return name;
  }
  [[nodiscard]] std::uint16_t port() const { return ntohs(name().sin_port); }
  void connect(const sockaddr_in& peer) const {
    ASSERT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0) << errno;
  }

  void send(const std::string& text, int flags = 0) const {
    ASSERT_EQ(::send(fd_, text.data(), text.size(), flags), static_cast<ssize_t>(text.size())) << errno;
  }
  void send_to(const sockaddr_in& to, const std::string& text, int flags = 0) const {
    ASSERT_EQ(::sendto(fd_, text.data(), text.size(), flags, reinterpret_cast<const sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(text.size()))
        << errno;
  }
  void send_to(const Udp& to, const std::string& text, int flags = 0) const { send_to(to.name(), text, flags); }

  /// The next datagram; "<errno N>" when there is none.
  [[nodiscard]] std::string receive(int flags = 0, std::size_t room = 70'000) const {
    std::string text(room, '\0');
    const ssize_t got = ::recv(fd_, text.data(), text.size(), flags);
    if (got < 0) return "<errno " + std::to_string(errno) + ">";
    text.resize(std::min(text.size(), static_cast<std::size_t>(got)));
    return text;
  }
  /// The next datagram, and the port that it came from.
  [[nodiscard]] std::pair<std::string, std::uint16_t> receive_from(int flags = 0) const {
    std::string text(70'000, '\0');
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t got = ::recvfrom(fd_, text.data(), text.size(), flags, reinterpret_cast<sockaddr*>(&from), &length);
    if (got < 0) return {"<errno " + std::to_string(errno) + ">", std::uint16_t{0}};
    EXPECT_EQ(length, sizeof from);
    EXPECT_EQ(from.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    text.resize(static_cast<std::size_t>(got));
    return {text, ntohs(from.sin_port)};
  }
  [[nodiscard]] bool is_readable(int milliseconds = 0) const {
    pollfd entry{fd_, POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) == 1 && (entry.revents & POLLIN) != 0;
  }
  /// Whether the kernel's socket has a datagram, by a system call that no library sees.
  [[nodiscard]] bool kernel_has_one() const {
    char byte = 0;
    return raw_syscall(SYS_recvfrom, fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT, nullptr, nullptr) >= 0;
  }

 private:
  int fd_;
};

/// A flag with which the kernel carries a datagram where others go by a ring.
inline constexpr int kByKernel = MSG_DONTROUTE;

inline const std::string kAgain = "<errno " + std::to_string(EAGAIN) + ">";
inline const std::string kRefused = "<errno " + std::to_string(ECONNREFUSED) + ">";

/// Exchanges datagrams until those from `from` to `to` go by a ring. One is not enough: the receiver may have slept
/// until it was sure that nothing came before it, and the kernel carries the first one to a sleeper.
inline void warm_up(const Udp& from, const Udp& to, const sockaddr_in* name = nullptr) {
  const sockaddr_in there = name != nullptr ? *name : to.name();
  constexpr int kEnough = 2;
  int by_ring = 0;
  for (int i = 0; i < 3000 && by_ring < kEnough; ++i) {
    from.send_to(there, "warm");
    const bool is_by_ring = !to.kernel_has_one();
    by_ring = is_by_ring ? by_ring + 1 : 0;
    ASSERT_EQ(to.receive(), "warm");
    if (!has_rings() && i == 8) return;
    if (!is_by_ring) ::usleep(1000);
  }
  ASSERT_EQ(by_ring, kEnough) << "no ring";
}

/// Two sockets whose datagrams to each other go by rings.
struct UdpPair {
  UdpPair() {
    warm_up(alice, bob);
    warm_up(bob, alice);
  }
  Udp alice, bob;
};

}  // namespace ringsock::preload_tests
