// Datagram rsockets with names, and the little helpers that stories about them need.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <string>
#include <string_view>

#include "tests/stories/rsocket_pair.h"

namespace ringsock::stories {

inline timeval seconds(long s) { return {s, 0}; }

/// A datagram rsocket, bound to a free port of `host` unless that is null. Waits of more than ten seconds fail.
struct Post {
  explicit Post(const char* host = "127.0.0.1", int domain = AF_INET) : socket(rsocket(domain, SOCK_DGRAM, 0)) {
    EXPECT_GE(socket.fd(), 0) << strerror(errno);
    const timeval patience = seconds(10);
    EXPECT_EQ(rsetsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    if (host == nullptr) return;
    name = address_of(host);
    EXPECT_EQ(rbind(socket, name.get(), name.length), 0) << strerror(errno);
    name = local_name(socket);
  }
  void send(std::string_view text, const Address& to) const {
    Address copy = to;
    ASSERT_EQ(rsendto(socket, text.data(), text.size(), 0, copy.get(), copy.length), static_cast<ssize_t>(text.size()))
        << strerror(errno);
  }
  void send(std::string_view text, const Post& to) const { send(text, to.name); }
  /// The next datagram, "<error NAME>" without one; `from` becomes its source.
  std::string hear(Address* from = nullptr, int flags = 0) const {
    std::string text(4096, '\0');
    Address source;
    const ssize_t got = rrecvfrom(socket, text.data(), text.size(), flags, source.get(), &source.length);
    if (got < 0) return std::string("<") + strerrorname_np(errno) + ">";
    text.resize(static_cast<std::size_t>(got));
    if (from != nullptr) *from = source;
    return text;
  }
  void connect(Address to) const { ASSERT_EQ(rconnect(socket, to.get(), to.length), 0) << strerror(errno); }

  Rsocket socket;
  Address name;
};

/// Lets both learn the other's queue pair: one datagram each way by the kernel.
inline void introduce(const Post& alice, const Post& bob) {
  alice.send("hello", bob);
  ASSERT_EQ(bob.hear(), "hello");
  bob.send("welcome", alice);
  ASSERT_EQ(alice.hear(), "welcome");
}

/// A program that is no rsocket: a UDP socket of the kernel.
class KernelSocket {
 public:
  explicit KernelSocket(const char* host = "127.0.0.1", std::uint16_t port = 0) : name_(address_of(host, port)) {
    fd_ = ::socket(name_.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(fd_, name_.get(), name_.length), 0) << strerror(errno);
    EXPECT_EQ(::getsockname(fd_, name_.get(), &name_.length), 0);
    const timeval patience = seconds(10);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  KernelSocket(const KernelSocket&) = delete;
  KernelSocket& operator=(const KernelSocket&) = delete;
  ~KernelSocket() { ::close(fd_); }
  [[nodiscard]] const Address& name() const { return name_; }
  void send(std::string_view bytes, Address to) const {
    ASSERT_EQ(::sendto(fd_, bytes.data(), bytes.size(), 0, to.get(), to.length), static_cast<ssize_t>(bytes.size()))
        << strerror(errno);
  }
  /// "" when nothing is there.
  [[nodiscard]] std::string hear(int flags = 0) const {
    std::string text(4096, '\0');
    const ssize_t got = ::recv(fd_, text.data(), text.size(), flags);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

 private:
  int fd_ = -1;
  Address name_;
};

/// The bytes of a rendezvous packet over IPv4 (fact sheet 3.2).
inline std::string rendezvous(char op, std::uint32_t qp_number, std::string_view payload = "") {
  std::string out = "UUUU";
  out += {'\4', op, '\20', '\0', '\0'};
  for (const int shift : {16, 8, 0}) out += static_cast<char>(qp_number >> shift & 0xff);
  out += {'\x7f', '\0', '\0', '\1'};
  out += payload;
  return out;
}
inline constexpr char kData = 0;
inline constexpr char kControl = 7;

}  // namespace ringsock::stories
