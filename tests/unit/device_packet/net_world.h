// Two network namespaces of the test's own with an Ethernet cable (veth) between them. They go with the process.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"

namespace ringsock::testing {

/// The calling thread is in another namespace while this lives.
class InNamespace {
 public:
  explicit InNamespace(int fd) : home_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    if (::setns(fd, CLONE_NEWNET) != 0) throw std::runtime_error("setns");
  }
  InNamespace(const InNamespace&) = delete;
  InNamespace& operator=(const InNamespace&) = delete;
  ~InNamespace() { ::setns(home_.get(), CLONE_NEWNET); }

 private:
  UniqueFd home_;
};

inline void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

/// A host at one end of the cable.
struct Host {
  UniqueFd space;
  std::string interface;
  unsigned ifindex = 0;
  std::array<std::uint8_t, 6> mac{};
  SocketAddress v4, v6;  ///< port 0

  /// Runs a command there.
  void sh(const std::string& command) const {
    InNamespace there(space.get());
    run(command);
  }
  /// A UDP socket there, bound to the host's own address of that family and a port of the kernel's choice.
  [[nodiscard]] UniqueFd udp_socket(int family = AF_INET) const {
    InNamespace there(space.get());
    UniqueFd out(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const SocketAddress& address = family == AF_INET ? v4 : v6;
    if (::bind(out.get(), address.get(), address.length()) != 0) throw std::runtime_error("bind");
    return out;
  }
};

inline SocketAddress local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  return *SocketAddress::from(reinterpret_cast<sockaddr*>(&storage), length);
}

/// alice (10.77.0.1, fd77::1) and bob (10.77.0.2, fd77::2).
class NetWorld {
 public:
  /// Why there is none here; null: there is.
  static const char* unavailable() {
    if (::geteuid() != 0) return "needs root for network namespaces";
    if (std::system("ip -V >/dev/null 2>&1") != 0) return "needs ip(8)";
    const UniqueFd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (::unshare(CLONE_NEWNET) != 0) return "network namespaces are not permitted";
    ::setns(home.get(), CLONE_NEWNET);
    return nullptr;
  }

  NetWorld() {
    make_namespace(alice);
    make_namespace(bob);
    alice.interface = "eth-alice";
    bob.interface = "eth-bob";
    const std::string bobs = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(bob.space.get());
    alice.sh("ip link add eth-alice type veth peer name eth-bob netns " + bobs);
    set_up(alice, 1);
    set_up(bob, 2);
    learn_neighbour(alice, bob);
    learn_neighbour(bob, alice);
  }

  Host alice, bob;

 private:
  static void make_namespace(Host& host) {
    const UniqueFd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (::unshare(CLONE_NEWNET) != 0) throw std::runtime_error("unshare");
    host.space.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ::setns(home.get(), CLONE_NEWNET);
  }
  static void set_up(Host& host, unsigned number) {
    const std::string n = std::to_string(number), device = " dev " + host.interface;
    host.sh("ip addr add 10.77.0." + n + "/24" + device + " && ip addr add fd77::" + n + "/64 nodad" + device +
            " && ip link set lo up && ip link set " + host.interface + " up");
    in6_addr six{};
    six.s6_addr[0] = 0xfd;
    six.s6_addr[1] = 0x77;
    six.s6_addr[15] = static_cast<std::uint8_t>(number);
    host.v4 = SocketAddress::v4(0x0a4d0000 + number, 0);
    host.v6 = SocketAddress::v6(six, 0);
    InNamespace there(host.space.get());
    host.ifindex = ::if_nametoindex(host.interface.c_str());
    read_mac(host);
  }
  static void read_mac(Host& host) {
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, host.interface.c_str(), sizeof request.ifr_name - 1);
    ::ioctl(socket.get(), SIOCGIFHWADDR, &request);
    std::memcpy(host.mac.data(), request.ifr_hwaddr.sa_data, host.mac.size());
  }
  static void learn_neighbour(const Host& at, const Host& of) {
    char mac[18];
    const auto& m = of.mac;
    std::snprintf(mac, sizeof mac, "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
    for (const SocketAddress& address : {of.v4, of.v6}) {
      char text[INET6_ADDRSTRLEN];
      const void* bytes = address.family() == AF_INET ? static_cast<const void*>(&address.in4().sin_addr)
                                                      : static_cast<const void*>(&address.in6().sin6_addr);
      ::inet_ntop(address.family(), bytes, text, sizeof text);
      at.sh(std::string("ip neigh replace ") + text + " lladdr " + mac + " dev " + at.interface + " nud permanent");
    }
  }
};

}  // namespace ringsock::testing
