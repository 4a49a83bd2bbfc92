// The kernel tells which user's listener would get a connection to an address and port. Its answers are compared with
// what it does when a client connects.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/device/shm/names/port_lookup.h"
#include "tests/unit/shm_cm/other_process.h"

namespace ringsock::soft {
namespace {

using tests::Channel;
using tests::OtherProcess;
using verbs::PortSpace;

constexpr uid_t kAlice = 64101, kBob = 64102;

SocketAddress v4(std::uint32_t host, std::uint16_t port) { return SocketAddress::v4(host, port); }
SocketAddress v6_loopback(std::uint16_t port) { return SocketAddress::v6(in6addr_loopback, port); }

std::uint16_t port_of(const UniqueFd& socket) {
  const auto name = name_by(::getsockname, socket.get(), "getsockname");
  return name ? name->port() : std::uint16_t{0};
}

class PortLookup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
  }

  struct Wish {
    bool v6_only = false;
    bool share = false;
    const char* device = nullptr;
  };
  /// A TCP listener of `uid`.
  static UniqueFd listener(uid_t uid, const SocketAddress& address, Wish wish) {
    ::setfsuid(uid);
    UniqueFd out(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::setfsuid(0);
    const auto set = [&](int level, int name, int value) {
      EXPECT_EQ(::setsockopt(out.get(), level, name, &value, sizeof value), 0);
    };
    if (address.family() == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, wish.v6_only ? 1 : 0);
    if (wish.share) set(SOL_SOCKET, SO_REUSEPORT, 1);
    if (wish.device != nullptr) {
      EXPECT_EQ(::setsockopt(out.get(), SOL_SOCKET, SO_BINDTODEVICE, wish.device,
                             static_cast<socklen_t>(std::char_traits<char>::length(wish.device))),
                0);
    }
    EXPECT_EQ(::bind(out.get(), address.get(), address.length()), 0) << address.to_string() << std::strerror(errno);
    EXPECT_EQ(::listen(out.get(), 8), 0);
    return out;
  }
  static UniqueFd listener(uid_t uid, const SocketAddress& address) { return listener(uid, address, Wish{}); }

  /// 0 where nobody listens: root has no listeners here.
  static uid_t told(const SocketAddress& destination) {
    const UniqueFd here(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto owner = owner_by_kernel(PortSpace::tcp, destination, here.get());
    EXPECT_TRUE(owner || owner.error().code == ENOENT) << owner.error().where;
    return owner ? *owner : 0;
  }
  /// What the kernel says is what it does: a connection gets to a listener exactly where one is told of.
  static bool is_there(const SocketAddress& destination) {
    const UniqueFd client(::socket(destination.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::connect(client.get(), destination.get(), destination.length()) == 0;
  }
};

TEST_F(PortLookup, FindsTheListenerOfTheAddress) {
  const UniqueFd alice = listener(kAlice, v4(0x7f000001, 0));
  const std::uint16_t port = port_of(alice);
  const UniqueFd bob = listener(kBob, v4(0x7f000002, port));
  EXPECT_EQ(told(v4(0x7f000001, port)), kAlice);
  EXPECT_EQ(told(v4(0x7f000002, port)), kBob);
  EXPECT_EQ(told(v4(0x7f000003, port)), 0u);
  EXPECT_EQ(told(v6_loopback(port)), 0u);
}

TEST_F(PortLookup, FindsAWildcardBehindEveryAddress) {
  const UniqueFd alice = listener(kAlice, SocketAddress::wildcard(AF_INET, 0));
  const std::uint16_t port = port_of(alice);
  EXPECT_EQ(told(v4(0x7f000001, port)), kAlice);
  EXPECT_EQ(told(v4(0x7f070809, port)), kAlice);
  EXPECT_EQ(told(v6_loopback(port)), 0u);
}

TEST_F(PortLookup, FindsADualStackListenerForBothFamilies) {
  const UniqueFd alice = listener(kAlice, SocketAddress::wildcard(AF_INET6, 0));
  const std::uint16_t port = port_of(alice);
  EXPECT_EQ(told(v4(0x7f000001, port)), kAlice);
  EXPECT_EQ(told(v6_loopback(port)), kAlice);
  EXPECT_TRUE(is_there(v4(0x7f000001, port)));
}

TEST_F(PortLookup, KeepsApartTheListenersOfTheFamilies) {
  // The kernel gives IPv6 a port that IPv4 may be using, but not the other way round.
  const std::uint16_t port = port_of(listener(kBob, SocketAddress::wildcard(AF_INET, 0)));
  const UniqueFd alice = listener(kAlice, SocketAddress::wildcard(AF_INET6, port), {.v6_only = true});
  EXPECT_EQ(told(v4(0x7f000001, port)), 0u);
  EXPECT_FALSE(is_there(v4(0x7f000001, port)));
  const UniqueFd bob = listener(kBob, SocketAddress::wildcard(AF_INET, port));
  EXPECT_EQ(told(v4(0x7f000001, port)), kBob);
  EXPECT_EQ(told(v6_loopback(port)), kAlice);
}

TEST_F(PortLookup, FindsAListenerBoundToAMappedAddress) {
  const UniqueFd alice = listener(kAlice, v4(0x7f000001, 0).mapped());
  EXPECT_EQ(told(v4(0x7f000001, port_of(alice))), kAlice);
}

TEST_F(PortLookup, FindsAGroupThatSharesThePort) {
  const UniqueFd first = listener(kAlice, v4(0x7f000001, 0), {.share = true});
  const std::uint16_t port = port_of(first);
  const UniqueFd second = listener(kAlice, v4(0x7f000001, port), {.share = true});
  EXPECT_EQ(told(v4(0x7f000001, port)), kAlice);
}

TEST_F(PortLookup, DoesNotFindWhatIsMerelyBound) {
  const UniqueFd bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = v4(0x7f000001, 0);
  ASSERT_EQ(::bind(bound.get(), any.get(), any.length()), 0);
  EXPECT_EQ(told(v4(0x7f000001, port_of(bound))), 0u);
}

TEST_F(PortLookup, DoesNotFindAConnectionOfThePort) {
  UniqueFd alice = listener(kAlice, v4(0x7f000001, 0));
  const SocketAddress there = v4(0x7f000001, port_of(alice));
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), there.get(), there.length()), 0);
  const UniqueFd accepted(::accept(alice.get(), nullptr, nullptr));
  alice.reset();
  EXPECT_EQ(told(there), 0u);
}

TEST_F(PortLookup, GoesByTheDeviceThatAListenerIsBoundTo) {
  // Connections within a host come by its loopback device, to whichever of its addresses they go.
  OtherProcess inside(0, [](Channel) {
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    if (std::system(
            "ip link set lo up && ip link add red type veth peer name blue && ip addr add 192.0.2.9/24 dev red &&"
            "ip -6 addr add fd00::9/64 dev red nodad && ip link set red up && ip link set blue up") != 0) {
      return 77;
    }
    in6_addr host{};
    host.s6_addr[0] = 0xfd;
    host.s6_addr[15] = 9;
    for (const int family : {AF_INET, AF_INET6}) {
      for (const char* const device : {"red", "lo"}) {
        const UniqueFd alice = listener(kAlice, SocketAddress::wildcard(family, 0), {.device = device});
        const std::uint16_t port = port_of(alice);
        for (const SocketAddress& there :
             {v4(0xc0000209, port), v4(0x7f000001, port), v6_loopback(port), SocketAddress::v6(host, port)}) {
          if (is_there(there) != (told(there) == kAlice)) {
            std::fprintf(stderr, "%s, %s\n", device, there.to_string().c_str());
            return 1;
          }
        }
      }
    }
    return 0;
  });
  EXPECT_EQ(inside.wait(), 0);
}

TEST_F(PortLookup, AsksForDatagramsToo) {
  ::setfsuid(kAlice);
  const UniqueFd alice(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ::setfsuid(0);
  const SocketAddress any = v4(0x7f000001, 0);
  ASSERT_EQ(::bind(alice.get(), any.get(), any.length()), 0);
  const auto owner = owner_by_kernel(PortSpace::udp, v4(0x7f000001, port_of(alice)), alice.get());
  ASSERT_TRUE(owner);
  EXPECT_EQ(*owner, kAlice);
}

TEST_F(PortLookup, SurvivesThatItsSocketIsClosedUnderIt) {
  OtherProcess careless(0, [](Channel) {
    UniqueFd alice = listener(kAlice, v4(0x7f000001, 0));
    const SocketAddress there = v4(0x7f000001, port_of(alice));
    if (told(there) != kAlice) return 1;
    // The numbers become other files.
    for (int fd = 3; fd < 2000; ++fd) {
      if (fd != alice.get()) ::close(fd);
    }
    std::vector<UniqueFd> files;
    for (int i = 0; i < 1010; ++i) files.emplace_back(::dup(1));
    if (told(there) != kAlice) return 2;
    for (const UniqueFd& file : files) {
      if (::fcntl(file.get(), F_GETFD) < 0) return 3;
    }
    return 0;
  });
  EXPECT_EQ(careless.wait(), 0);
}

TEST_F(PortLookup, IsAskedByThreadsAndForkedProcessesAtOnce) {
  const UniqueFd alice = listener(kAlice, v4(0x7f000001, 0));
  const UniqueFd bob = listener(kBob, v4(0x7f000001, 0));
  const auto ask_both = [&] {
    for (int i = 0; i < 2000; ++i) {
      if (told(v4(0x7f000001, port_of(alice))) != kAlice || told(v4(0x7f000001, port_of(bob))) != kBob) return 1;
    }
    return 0;
  };
  OtherProcess child(0, [&](Channel) { return ask_both(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(ask_both(), 0); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(PortLookup, AnswersForTheNetworkNamespaceOfTheConnection) {
  const UniqueFd alice = listener(kAlice, v4(0x7f000001, 0));
  const SocketAddress there = v4(0x7f000001, port_of(alice));
  EXPECT_EQ(told(there), kAlice);
  OtherProcess elsewhere(0, [&](Channel) {
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    if (told(there) != 0) return 1;
    return owner_by_kernel(PortSpace::tcp, there, alice.get()).error().code == EOPNOTSUPP ? 0 : 2;
  });
  EXPECT_EQ(elsewhere.wait(), 0);
}

}  // namespace
}  // namespace ringsock::soft
