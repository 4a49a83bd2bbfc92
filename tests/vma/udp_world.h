// UDP sockets of libc, as any program uses them, against the echo service of another host (two_hosts.sh). The tests
// here run on the kernel's sockets, which shows that they are right, and with libvma.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ringsock::vma_tests {

/// Whether libvma is there.
inline bool preloaded() {
  const char* libraries = std::getenv("LD_PRELOAD");
  return libraries != nullptr && std::strstr(libraries, "libvma") != nullptr;
}

inline constexpr std::uint16_t kEchoPort = 7000;

class Address {
 public:
  Address() = default;
  Address(const char* host, std::uint16_t port) {
    in_addr v4{};
    if (::inet_pton(AF_INET, host, &v4) == 1) {
      auto& in4 = reinterpret_cast<sockaddr_in&>(storage_);
      in4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = v4, .sin_zero = {}};
      length_ = sizeof in4;
    } else {
      auto& in6 = reinterpret_cast<sockaddr_in6&>(storage_);
      in6.sin6_family = AF_INET6;
      in6.sin6_port = htons(port);
      ::inet_pton(AF_INET6, host, &in6.sin6_addr);
      length_ = sizeof in6;
    }
  }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage_); }
  socklen_t& length() { return length_; }
  [[nodiscard]] socklen_t length() const { return length_; }
  [[nodiscard]] std::uint16_t port() const {
    return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage_).sin_port
                                     : reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  }
  [[nodiscard]] std::string host() const {
    char text[INET6_ADDRSTRLEN]{};
    const void* const bytes = family() == AF_INET
                                  ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(storage_).sin_addr)
                                  : &reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
    ::inet_ntop(family(), bytes, text, sizeof text);
    return text;
  }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = sizeof(sockaddr_storage);
};

/// sendmsg(2) of `message` with one item of control data.
template <class Value>
ssize_t send_with_control(int fd, msghdr message, int level, int type, const Value& value) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof value)]{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const item = CMSG_FIRSTHDR(&message);
  item->cmsg_level = level;
  item->cmsg_type = type;
  item->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(item), &value, sizeof value);
  return ::sendmsg(fd, &message, 0);
}

/// A UDP socket that is closed by libc's close().
class Socket {
 public:
  explicit Socket(int family, int flags = 0) : fd_(::socket(family, SOCK_DGRAM | flags, 0)) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  operator int() const { return fd_; }

  [[nodiscard]] Address name() const {
    Address name;
    ::getsockname(fd_, name.get(), &name.length());
    return name;
  }
  void set(int level, int option, int value) const {
    ASSERT_EQ(::setsockopt(fd_, level, option, &value, sizeof value), 0) << std::strerror(errno);
  }
  /// Nobody is waited for longer than this.
  void limit_waits(int milliseconds = 30'000) const {
    const timeval limit{milliseconds / 1000, milliseconds % 1000 * 1000};
    ASSERT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  }
  ssize_t send_to(const Address& to, const std::string& data) const {
    return ::sendto(fd_, data.data(), data.size(), 0, to.get(), to.length());
  }
  /// sendmsg(2) with one item of control data.
  template <class Value>
  ssize_t send_with(const Address& to, int level, int type, const Value& value, const std::string& data) const {
    iovec part{const_cast<char*>(data.data()), data.size()};
    Address name = to;
    msghdr message{};
    message.msg_name = name.get();
    message.msg_namelen = name.length();
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return send_with_control(fd_, message, level, type, value);
  }
  /// "" and errno when nothing came.
  std::string receive(Address* from = nullptr, int flags = 0) const {
    std::vector<char> room(70000);
    Address sender;
    const ssize_t got = ::recvfrom(fd_, room.data(), room.size(), flags, sender.get(), &sender.length());
    if (got >= 0 && from != nullptr) *from = sender;
    return got < 0 ? std::string() : std::string(room.data(), static_cast<std::size_t>(got));
  }

 private:
  int fd_;
};

/// A counter of the kernel's UDP, of one IP version: the `column`th of IPv4's, or by its name of IPv6's.
inline long kernels_counter(int family, int column, const char* name_of_v6) {
  std::ifstream file(family == AF_INET ? "/proc/net/snmp" : "/proc/net/snmp6");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    long value = 0;
    if (name == name_of_v6 && words >> value) return value;
    if (name != "Udp:") continue;
    int read = 0;
    while (read < column && words >> value) ++read;
    if (read == column) return value;  // the second such line: the first one has no numbers
  }
  return -1;
}

/// Datagrams that the kernel has given to sockets of this host, of one IP version.
inline long kernels_datagrams(int family) { return kernels_counter(family, 1, "Udp6InDatagrams"); }
/// Datagrams that sockets of this host have sent by the kernel.
inline long kernels_sent_datagrams(int family) { return kernels_counter(family, 4, "Udp6OutDatagrams"); }

/// What is there.
inline std::vector<std::string> all_of(const Socket& socket) {
  std::vector<std::string> out;
  // Often enough for the rings' sockets to look at the kernel's, too.
  for (int i = 0; i < 400; ++i) {
    if (std::string text = socket.receive(nullptr, MSG_DONTWAIT); !text.empty()) out.push_back(text);
  }
  return out;
}
using Texts = std::vector<std::string>;

/// Has the other host send something.
class Messenger {
 public:
  explicit Messenger(const Address& echo) : echo_(echo), socket_(echo.family()) { socket_.limit_waits(); }
  /// It has been sent when this returns, if it is short.
  void send(const std::string& text, const std::string& to, std::uint16_t port) const {
    ASSERT_GT(socket_.send_to(echo_, order(text, to, port)), 0);
    ASSERT_EQ(socket_.send_to(echo_, "done?"), 5);
    ASSERT_EQ(socket_.receive(), "done?") << std::strerror(errno);
  }
  void send_unwatched(const std::string& text, const std::string& to, std::uint16_t port) const {
    socket_.send_to(echo_, order(text, to, port));
  }

 private:
  static std::string order(const std::string& text, const std::string& to, std::uint16_t port) {
    return "to " + to + " " + std::to_string(port) + " " + text;
  }
  const Address echo_;
  const Socket socket_;
};

}  // namespace ringsock::vma_tests
