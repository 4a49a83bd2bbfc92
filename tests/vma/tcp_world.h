// TCP connections between the two hosts of two_hosts.sh, as the stories of VMA_TCP use them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/raw_syscall.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {

/// Whose a socket is: this program's calls, which libvma sees, or system calls of our own, so that the kernel has it.
enum class Calls : std::uint8_t { librarys, kernels };

/// A socket of a stream. Blocking calls give up after ten seconds.
class Stream {
 public:
  Stream() = default;
  Stream(int fd, Calls calls) : fd_(fd), calls_(calls) {}
  Stream(Stream&& other) noexcept : fd_(std::exchange(other.fd_, -1)), calls_(other.calls_) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(calls_, other.calls_);
    return *this;
  }
  ~Stream() { close(); }

  [[nodiscard]] int fd() const { return fd_; }
  /// Returns whether a ring carries it: the kernel's socket is frozen then.
  [[nodiscard]] bool is_on_ring() const {
    int frozen = 0;
    socklen_t length = sizeof frozen;
    EXPECT_EQ(raw_syscall(SYS_getsockopt, fd_, IPPROTO_TCP, TCP_REPAIR, &frozen, &length), 0);
    return frozen != 0;
  }
  void close() {
    if (fd_ < 0) return;
    calls_ == Calls::librarys ? static_cast<long>(::close(fd_)) : raw_syscall(SYS_close, fd_);
    fd_ = -1;
  }
  void limit_waits() const {
    const timeval limit{10, 0};
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
      const long set = calls_ == Calls::librarys
                           ? ::setsockopt(fd_, SOL_SOCKET, name, &limit, sizeof limit)
                           : raw_syscall(SYS_setsockopt, fd_, SOL_SOCKET, name, &limit, sizeof limit);
      EXPECT_EQ(set, 0) << std::strerror(errno);
    }
  }
  [[nodiscard]] long send_some(const void* data, std::size_t bytes, int flags = MSG_NOSIGNAL) const {
    return calls_ == Calls::librarys ? ::send(fd_, data, bytes, flags)
                                     : raw_syscall(SYS_sendto, fd_, data, bytes, flags, nullptr, 0);
  }
  [[nodiscard]] long receive_some(void* data, std::size_t bytes, int flags = 0) const {
    return calls_ == Calls::librarys ? ::recv(fd_, data, bytes, flags)
                                     : raw_syscall(SYS_recvfrom, fd_, data, bytes, flags, nullptr, nullptr);
  }
  /// Returns what was sent.
  std::size_t send(const std::string& data) const {
    std::size_t done = 0;
    while (done < data.size()) {
      const long sent = send_some(data.data() + done, data.size() - done);
      if (sent <= 0) break;
      done += static_cast<std::size_t>(sent);
    }
    return done;
  }
  /// Returns so many bytes, or fewer up to the end of the stream or an error.
  [[nodiscard]] std::string receive(std::size_t bytes) const {
    std::string out(bytes, '\0');
    std::size_t done = 0;
    while (done < bytes) {
      const long got = receive_some(out.data() + done, bytes - done);
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    out.resize(done);
    return out;
  }
  void shut_down(int how) const {
    EXPECT_EQ(calls_ == Calls::librarys ? ::shutdown(fd_, how) : raw_syscall(SYS_shutdown, fd_, how), 0);
  }
  /// Returns the error of a receive that should fail, 0 for the end of the stream.
  [[nodiscard]] int error_of_receive() const {
    char one = 0;
    const long got = receive_some(&one, 1);
    return got < 0 ? errno : got == 0 ? 0 : -1;
  }

 private:
  int fd_ = -1;
  Calls calls_ = Calls::librarys;
};

/// A listener at a port of an address, 0: a free one. As servers do, it may follow another one at the same port.
class Listener {
 public:
  Listener(const char* host, Calls calls, std::uint16_t port = 0) : calls_(calls), name_(host, port) {
    const int type = SOCK_STREAM | SOCK_CLOEXEC;
    const int fd = calls == Calls::librarys ? ::socket(name_.family(), type, 0)
                                            : static_cast<int>(raw_syscall(SYS_socket, name_.family(), type, 0));
    socket_ = Stream(fd, calls);
    const int on = 1;
    EXPECT_EQ(raw_syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(raw_or_not(SYS_bind, ::bind, name_.get(), name_.length()), 0) << std::strerror(errno);
    EXPECT_EQ(calls == Calls::librarys ? ::listen(fd, 512) : raw_syscall(SYS_listen, fd, 512), 0);
    EXPECT_EQ(raw_syscall(SYS_getsockname, fd, name_.get(), &name_.length()), 0);
  }
  [[nodiscard]] const Address& name() const { return name_; }
  [[nodiscard]] int fd() const { return socket_.fd(); }
  [[nodiscard]] Stream accept() const {
    const long fd = calls_ == Calls::librarys ? ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC)
                                              : raw_syscall(SYS_accept4, socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(fd, 0) << std::strerror(errno);
    Stream out(static_cast<int>(fd), calls_);
    out.limit_waits();
    return out;
  }

 private:
  template <class Libcs>
  long raw_or_not(long number, Libcs libcs, const sockaddr* address, socklen_t length) const {
    return calls_ == Calls::librarys ? libcs(socket_.fd(), address, length)
                                     : raw_syscall(number, socket_.fd(), address, length);
  }
  Calls calls_;
  Address name_;
  Stream socket_;
};

inline Stream connected_to(const Address& name, Calls calls) {
  const int type = SOCK_STREAM | SOCK_CLOEXEC;
  const int fd = calls == Calls::librarys ? ::socket(name.family(), type, 0)
                                          : static_cast<int>(raw_syscall(SYS_socket, name.family(), type, 0));
  const long connected = calls == Calls::librarys ? ::connect(fd, name.get(), name.length())
                                                  : raw_syscall(SYS_connect, fd, name.get(), name.length());
  EXPECT_EQ(connected, 0) << std::strerror(errno);
  Stream out(fd, calls);
  out.limit_waits();
  return out;
}

/// Both ends of a connection, `here` by libvma.
struct Pair {
  Stream here, there;
};

inline Pair connect_from_here(const char* host_there, Calls theirs) {
  const Listener listener = over_there([&] { return Listener(host_there, theirs); });
  Stream here = connected_to(listener.name(), Calls::librarys);
  Stream there = over_there([&] { return listener.accept(); });
  return {std::move(here), std::move(there)};
}

inline Pair accept_here(const char* host_here, Calls theirs) {
  const Listener listener(host_here, Calls::librarys);
  Stream there = over_there([&] { return connected_to(listener.name(), theirs); });
  Stream here = listener.accept();
  return {std::move(here), std::move(there)};
}

/// The first connection of a process stays with the kernel until it proves to last; those after it need not.
class LastingProcess : public testing::Environment {
 public:
  void SetUp() override {
    const char* const tcp = std::getenv("VMA_TCP");
    const char* const polled = std::getenv("VMA_SOCKETXTREME");  // no connection waits for a proof
    if (tcp == nullptr || std::string(tcp) != "on" || std::getenv("TWO_HOSTS_PEER") == nullptr) return;
    constexpr int kTurns = 10;
    const Pair first = connect_from_here("10.9.0.2", Calls::kernels);
    EXPECT_EQ(first.here.is_on_ring(), polled != nullptr);
    for (int i = 0; i < kTurns; ++i) {
      ASSERT_EQ(first.here.send("?"), 1U);
      ASSERT_EQ(first.there.receive(1), "?");
      ASSERT_EQ(first.there.send("!"), 1U);
      ASSERT_EQ(first.here.receive(1), "!");
    }
    EXPECT_TRUE(first.here.is_on_ring());
  }
};
[[maybe_unused]] inline const testing::Environment* const lasting_process =
    testing::AddGlobalTestEnvironment(new LastingProcess);

}  // namespace ringsock::vma_tests
