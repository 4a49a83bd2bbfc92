// A socket of the other host (two_hosts.sh).
#pragma once

#include <fcntl.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/raw_syscall.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {

/// Runs `body` in the other host's namespace.
template <class Body>
auto over_there(Body body) {
  const int here = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = ::open((std::string("/run/netns/") + std::getenv("TWO_HOSTS_PEER")).c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::setns(there, CLONE_NEWNET), 0) << std::strerror(errno);
  auto out = body();
  EXPECT_EQ(::setns(here, CLONE_NEWNET), 0);
  ::close(here);
  ::close(there);
  return out;
}

/// A socket of the other host that the kernel has, by system calls of our own: libvma does not know of it, and nothing
/// that waits leaves because somebody reads here.
class FarSocket {
 public:
  explicit FarSocket(const char* host)
      : fd_(over_there(
            [&] { return static_cast<int>(raw_syscall(SYS_socket, Address(host, 0).family(), SOCK_DGRAM, 0)); })),
        name_(host, 0) {
    const timeval limit{5, 0};
    const int room = 4 << 20;
    raw_syscall(SYS_setsockopt, fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    raw_syscall(SYS_setsockopt, fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    EXPECT_EQ(raw_syscall(SYS_bind, fd_, name_.get(), name_.length()), 0) << std::strerror(errno);
    EXPECT_EQ(raw_syscall(SYS_getsockname, fd_, name_.get(), &name_.length()), 0);
  }
  FarSocket(const FarSocket&) = delete;
  FarSocket& operator=(const FarSocket&) = delete;
  ~FarSocket() { raw_syscall(SYS_close, fd_); }

  [[nodiscard]] const Address& name() const { return name_; }
  /// "(nothing)" after five seconds.
  [[nodiscard]] std::string receive(int flags = 0) const {
    std::vector<char> room(70000);
    const long got = raw_syscall(SYS_recvfrom, fd_, room.data(), room.size(), flags, nullptr, nullptr);
    return got < 0 ? "(nothing)" : std::string(room.data(), static_cast<std::size_t>(got));
  }
  [[nodiscard]] long send(const Address& to, const std::string& data) const {
    return raw_syscall(SYS_sendto, fd_, data.data(), data.size(), 0, to.get(), to.length());
  }
  void send_groups_by_eth0() const {
    const bool is_v4 = name_.family() == AF_INET;
    const int index = over_there([] { return static_cast<int>(::if_nametoindex("eth0")); });
    const ip_mreqn by{.imr_multiaddr = {}, .imr_address = {}, .imr_ifindex = index};
    ASSERT_EQ(is_v4 ? raw_syscall(SYS_setsockopt, fd_, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by)
                    : raw_syscall(SYS_setsockopt, fd_, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index),
              0)
        << std::strerror(errno);
  }
  /// From now on datagrams that left together are received together.
  void receive_whole_packets() const {
    const int on = 1;
    ASSERT_EQ(raw_syscall(SYS_setsockopt, fd_, SOL_UDP, UDP_GRO, &on, sizeof on), 0) << std::strerror(errno);
  }

 private:
  const int fd_;
  Address name_;
};

}  // namespace ringsock::vma_tests
