// A client of one user reaches the listeners of other users that the kernel vouches for, and no impostor; requests from
// addresses that are not this host's are dropped. With real users: each test runs as root, and its children become
// other users.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>

#include "core/base/refusals.h"
#include "core/device/shm/cm/acceptor.h"
#include "core/device/shm/cm/connector.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/names/port_reservation.h"
#include "tests/unit/shm_cm/other_process.h"

namespace ringsock::soft {
namespace {

using tests::Channel;
using tests::kAlice;
using tests::kBob;
using tests::OtherProcess;
using verbs::PortSpace;

constexpr uid_t kRoot = 0;
const auto kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 0);

SocketAddress at(std::uint32_t port) { return SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(port)); }

class TwoUsers : public ::testing::TestWithParam<PortSpace> {
 protected:
  /// In a network namespace of their own: while others of the host's programs come and go, the kernel's list of all
  /// sockets may leave one out.
  static void SetUpTestSuite() {
    home() = UniqueFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (::geteuid() != kRoot || ::unshare(CLONE_NEWNET) != 0) return;
    EXPECT_EQ(std::system("ip link set lo up"), 0);
  }
  static void TearDownTestSuite() {
    if (::geteuid() != kRoot) return;
    EXPECT_EQ(::setns(home().get(), CLONE_NEWNET), 0);
  }
  void SetUp() override {
    if (::geteuid() != kRoot) GTEST_SKIP() << "needs root to be several users";
  }

  static UniqueFd& home() {
    static UniqueFd fd;
    return fd;
  }

  /// What a client of that user hears.
  static int connect_as(uid_t uid, std::uint32_t port) {
    OtherProcess client(uid, [&](Channel) { return try_connect(port); });
    return client.wait();
  }
  static int try_connect(std::uint32_t port) {
    auto socket = make_link_socket();
    if (!socket) return 98;
    Connector connector(GetParam(), at(port), std::move(*socket), {}, Nanos(0));
    const auto connected = connector.attempt(Nanos(0));
    return connected ? 0 : connected.error().code;
  }
  /// Listens as the library does, tells the port, stays until it is told to go.
  static int serve(Channel parent, const SocketAddress& address) {
    PortReservation port;
    if (!port.bind(GetParam(), address, {})) return 1;
    const auto acceptor = Acceptor::open(port.binding(), 8, {});
    if (!acceptor) return 2;
    parent.tell(port.binding().address.port());
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  }
  /// Takes the name without the port.
  static int impersonate(Channel parent, std::uint32_t port) {
    const auto acceptor = Acceptor::open({GetParam(), at(port), false}, 8, {});
    if (!acceptor) return 1;
    parent.tell(1);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  }
};

TEST_P(TwoUsers, AnHonestListenerIsForEverybody) {
  OtherProcess alice(kAlice, [](Channel parent) { return serve(parent, kLoopback); });
  const auto port = alice.channel().hear();
  ASSERT_TRUE(port);
  EXPECT_EQ(connect_as(kAlice, *port), 0);
  EXPECT_EQ(connect_as(kBob, *port), 0);
  EXPECT_EQ(connect_as(kRoot, *port), 0);
}

TEST_P(TwoUsers, RootsListenerIsForEverybody) {
  OtherProcess root(kRoot, [](Channel parent) { return serve(parent, SocketAddress::wildcard(AF_INET6, 0)); });
  const auto port = root.channel().hear();
  ASSERT_TRUE(port);
  EXPECT_EQ(connect_as(kAlice, *port), 0);
  EXPECT_EQ(connect_as(kRoot, *port), 0);
}

TEST_P(TwoUsers, AnImpostorWithoutThePortGetsOnlyHisOwnClients) {
  // The port number was free a moment ago and belongs to nobody now.
  std::uint16_t port = 0;
  {
    PortReservation free_port;
    ASSERT_TRUE(free_port.bind(GetParam(), kLoopback, {}));
    port = free_port.binding().address.port();
  }
  OtherProcess impostor(kAlice, [&](Channel parent) { return impersonate(parent, port); });
  ASSERT_TRUE(impostor.channel().hear());
  EXPECT_EQ(connect_as(kBob, port), ECONNREFUSED);
  EXPECT_EQ(connect_as(kRoot, port), ECONNREFUSED);
  EXPECT_EQ(connect_as(kAlice, port), 0);
}

TEST_P(TwoUsers, AnImpostorOfAPortThatRootHoldsIsRefused) {
  PortReservation roots;
  ASSERT_TRUE(roots.bind(GetParam(), kLoopback, {}));
  const std::uint16_t port = roots.binding().address.port();
  OtherProcess impostor(kAlice, [&](Channel parent) { return impersonate(parent, port); });
  ASSERT_TRUE(impostor.channel().hear());
  EXPECT_EQ(connect_as(kBob, port), ECONNREFUSED);
  EXPECT_EQ(connect_as(kRoot, port), ECONNREFUSED);
}

TEST_P(TwoUsers, RootAsAnImpostorIsRefusedToo) {
  OtherProcess alice(kAlice, [](Channel parent) {
    PortReservation port;
    if (!port.bind(GetParam(), kLoopback, {})) return 1;
    parent.tell(port.binding().address.port());
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  const auto port = alice.channel().hear();
  ASSERT_TRUE(port);
  OtherProcess root(kRoot, [&](Channel parent) { return impersonate(parent, *port); });
  ASSERT_TRUE(root.channel().hear());
  EXPECT_EQ(connect_as(kBob, *port), ECONNREFUSED);
}

TEST_P(TwoUsers, AnHonestWildcardListenerIsFoundBehindAnImpostorOfTheExactAddress) {
  OtherProcess bob(kBob, [](Channel parent) { return serve(parent, SocketAddress::wildcard(AF_INET, 0)); });
  const auto port = bob.channel().hear();
  ASSERT_TRUE(port);
  OtherProcess impostor(kAlice, [&](Channel parent) { return impersonate(parent, *port); });
  ASSERT_TRUE(impostor.channel().hear());
  EXPECT_EQ(connect_as(kRoot, *port), 0);
  EXPECT_EQ(connect_as(kBob, *port), 0);
}

TEST_P(TwoUsers, APortSharedByTwoUsersBelongsToNobody) {
  // SO_REUSEADDR lets another user bind beside a socket that does not listen.
  const auto bind_reusing = [](const SocketAddress& address, Channel parent) {
    PortReservation port;
    if (!port.bind(GetParam(), address, {.reuse_address = true})) return 1;
    const auto acceptor = Acceptor::open(port.binding(), 8, {});
    parent.tell(port.binding().address.port());
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  };
  OtherProcess alice(kAlice, [&](Channel parent) { return bind_reusing(kLoopback, parent); });
  const auto port = alice.channel().hear();
  ASSERT_TRUE(port);
  EXPECT_EQ(connect_as(kRoot, *port), 0);
  OtherProcess bob(kBob, [&](Channel parent) { return bind_reusing(at(*port), parent); });
  ASSERT_TRUE(bob.channel().hear());
  EXPECT_EQ(connect_as(kRoot, *port), ECONNREFUSED);
  // Nobody listens by TCP, so Alice's clients are nobody else's. The kernel's datagrams are Bob's.
  EXPECT_EQ(connect_as(kAlice, *port), GetParam() == PortSpace::tcp ? 0 : ECONNREFUSED);
}

/// A listener of root's that is the kernel's only, on `address`; its port.
struct KernelListener {
  explicit KernelListener(const SocketAddress& address, PortSpace space)
      : socket(::socket(address.family(), space == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM, 0)) {
    EXPECT_EQ(::bind(socket.get(), address.get(), address.length()), 0);
    if (space == PortSpace::tcp) {
      EXPECT_EQ(::listen(socket.get(), 8), 0);
    }
    const auto name = name_by(::getsockname, socket.get(), "getsockname");
    if (name) port = name->port();
  }
  UniqueFd socket;
  std::uint16_t port = 0;
};

TEST_P(TwoUsers, AnImpostorDoesNotGetHisOwnUsersClientsOfAnothersListener) {
  for (const auto& address : {kLoopback, SocketAddress::wildcard(AF_INET, 0), SocketAddress::wildcard(AF_INET6, 0)}) {
    const KernelListener roots(address, GetParam());
    OtherProcess impostor(kAlice, [&](Channel parent) { return impersonate(parent, roots.port); });
    ASSERT_TRUE(impostor.channel().hear());
    EXPECT_EQ(connect_as(kAlice, roots.port), ECONNREFUSED) << address.to_string();
    EXPECT_EQ(connect_as(kBob, roots.port), ECONNREFUSED) << address.to_string();
  }
}

TEST_P(TwoUsers, NobodyWaitsForAnImpostorsBacklog) {
  const KernelListener roots(kLoopback, GetParam());
  OtherProcess impostor(kAlice, [&](Channel parent) {
    const auto acceptor = Acceptor::open({GetParam(), at(roots.port), false}, 0, {});
    const auto filling = make_link_socket();
    const AbstractAddress name(listening_name({GetParam(), at(roots.port), false}));
    if (!acceptor || !filling || ::connect(filling->get(), name.get(), name.length) != 0) return 1;
    parent.tell(1);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  ASSERT_TRUE(impostor.channel().hear());
  EXPECT_EQ(connect_as(kAlice, roots.port), ECONNREFUSED);
  EXPECT_EQ(connect_as(kBob, roots.port), ECONNREFUSED);
}

TEST_P(TwoUsers, AListenerOfAnotherPidNamespaceIsNotTrusted) {
  PortReservation port;
  ASSERT_TRUE(port.bind(GetParam(), kLoopback, {}));
  const auto acceptor = Acceptor::open(port.binding(), 8, {});
  ASSERT_TRUE(acceptor);
  const std::uint16_t number = port.binding().address.port();
  EXPECT_EQ(connect_as(kRoot, number), 0);
  OtherProcess outer(kRoot, [&](Channel) {
    if (::unshare(CLONE_NEWPID) != 0) return 77;
    return OtherProcess(kRoot, [&](Channel) { return try_connect(number); }).wait();
  });
  EXPECT_EQ(outer.wait(), ECONNREFUSED);
}

/// As of a container that has the host's network: its root has the number of the host's root.
TEST_P(TwoUsers, AListenerOfAPidNamespaceBelowIsNotTrusted) {
  OtherProcess outer(kRoot, [&](Channel parent) {
    if (::unshare(CLONE_NEWPID) != 0) return 77;
    return OtherProcess(kRoot,
                        [&](Channel) {
                          PortReservation port;
                          if (!port.bind(GetParam(), kLoopback, {})) return 2;
                          const auto acceptor = Acceptor::open(port.binding(), 8, {});
                          parent.tell(acceptor ? port.binding().address.port() : 0);
                          [[maybe_unused]] const auto end = parent.hear();
                          return 0;
                        })
        .wait();
  });
  const auto number = outer.channel().hear();
  ASSERT_TRUE(number && *number != 0);
  EXPECT_EQ(connect_as(kRoot, static_cast<std::uint16_t>(*number)), ECONNREFUSED);
}

TEST(PidNamespace, AProcessHasANumberInEachItIsIn) {
  EXPECT_EQ(count_pid_numbers("Name:\tsh\nNSpid:\t4711\nNSpgid:\t1\t2\n"), 1U);
  EXPECT_EQ(count_pid_numbers("Name:\tsh\nNSpid:\t4711\t12\t1\n"), 3U);
  EXPECT_EQ(count_pid_numbers("Name:\tsh\n"), 0U);
  // A name cannot pass for the line: the kernel escapes its newlines.
  EXPECT_EQ(count_pid_numbers("Name:\tNSpid:\t1\t2\nNSpid:\t4711\n"), 1U);
  EXPECT_TRUE(is_of_our_pid_namespace(::getpid(), monotonic_now()));
}

TEST(PidNamespace, ACapabilityIsABitOfTheEffectiveSet) {
  EXPECT_TRUE(has_capability("Name:\tsh\nCapPrm:\t0\nCapEff:\t0000000000000400\n", 10));
  EXPECT_FALSE(has_capability("Name:\tsh\nCapPrm:\t400\nCapEff:\t0000000000000000\n", 10));
  EXPECT_FALSE(has_capability("Name:\tsh\n", 10));
}

/// The server's side of the rule, in port space UDP, whose requests carry no queue pair.
class Requests : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != kRoot) GTEST_SKIP() << "needs root to be several users";
    ASSERT_TRUE(port_.bind(PortSpace::udp, SocketAddress::wildcard(AF_INET, 0), {}));
    auto opened = Acceptor::open(port_.binding(), 8, {});
    ASSERT_TRUE(opened);
    acceptor_ = std::move(*opened);
    number_ = port_.binding().address.port();
  }
  /// A client of that user sends a request that names these addresses.
  bool request_is_taken(uid_t uid, const SocketAddress& source, const SocketAddress& destination) {
    OtherProcess client(uid, [&](Channel parent) {
      auto socket = make_link_socket();
      Connector connector(PortSpace::udp, at(number_), std::move(*socket), {}, Nanos(0));
      auto connected = connector.attempt(Nanos(0));
      if (!connected) return 2;
      Link link(std::move(connected->socket));
      ConnectRequest request;
      request.space = PortSpace::udp;
      request.source = source;
      request.destination = destination;
      if (!link.send(LinkPacket::request, encode_request(request).view())) return 3;
      parent.tell(1);
      [[maybe_unused]] const auto end = parent.hear();
      return 0;
    });
    EXPECT_TRUE(client.channel().hear());
    return static_cast<bool>(acceptor_->next(Nanos(0)));
  }
  bool source_is_believed(uid_t uid, const char* host, std::uint16_t port = 40000) {
    return request_is_taken(uid, parse(host, port), at(number_));
  }
  static SocketAddress parse(const char* host, std::uint16_t port) {
    in_addr address{};
    EXPECT_EQ(::inet_pton(AF_INET, host, &address), 1);
    return SocketAddress::v4(ntohl(address.s_addr), port);
  }

  PortReservation port_;
  std::unique_ptr<Acceptor> acceptor_;
  std::uint16_t number_ = 0;
};

TEST_F(Requests, FromAddressesOfThisHostAreTaken) {
  EXPECT_TRUE(source_is_believed(kAlice, "127.0.0.1"));
  EXPECT_TRUE(source_is_believed(kAlice, "127.9.8.7"));
  EXPECT_TRUE(source_is_believed(kRoot, "127.0.0.1"));
}

TEST_F(Requests, FromAddressesOfOtherHostsAreDroppedAndCounted) {
  const auto before = refusals_counted(Refusal::address);
  for (const char* const elsewhere : {"203.0.113.7", "224.0.0.1", "255.255.255.255", "240.0.0.1", "0.0.0.1"}) {
    EXPECT_FALSE(source_is_believed(kAlice, elsewhere)) << elsewhere;
    EXPECT_FALSE(source_is_believed(kRoot, elsewhere)) << elsewhere;
  }
  EXPECT_EQ(refusals_counted(Refusal::address), before + 10);
}

TEST_F(Requests, ToAddressesOfOtherHostsAreDroppedThoughAWildcardCoversThem) {
  EXPECT_FALSE(request_is_taken(kAlice, at(40000), parse("203.0.113.7", number_)));
  EXPECT_TRUE(request_is_taken(kAlice, at(40000), parse("127.1.2.3", number_)));
}

TEST_F(Requests, FromAnAddressThatBindWouldTakeAreDroppedToo) {
  // Its own network namespace, so that the host's rules stay.
  OtherProcess inside(kRoot, [&](Channel) {
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    std::ofstream("/proc/sys/net/ipv4/ip_nonlocal_bind") << 1;
    ClientAddresses addresses;
    const auto network = make_link_socket();
    const PeerIdentity root{::getpid(), kRoot, true};
    const auto is_believed = [&](const char* host) {
      return addresses.are_true(root, parse(host, 40000), at(1), network->get(), Nanos(1));
    };
    return !is_believed("203.0.113.7") && is_believed("127.0.0.1") ? 0 : 1;
  });
  EXPECT_EQ(inside.wait(), 0);
}

TEST_F(Requests, FromAPrivilegedPortAreTakenOfRootOnly) {
  EXPECT_FALSE(source_is_believed(kAlice, "127.0.0.1", 22));
  EXPECT_TRUE(source_is_believed(kRoot, "127.0.0.1", 22));
}

TEST_F(Requests, TheKernelSaysWhichPortsArePrivileged) {
  OtherProcess inside(kRoot, [&](Channel) {
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    const auto network = make_link_socket();
    const PeerIdentity alice{1, kAlice, false};
    const auto may_have = [&](std::uint16_t port) {
      return ClientAddresses().are_true(alice, at(port), at(1), network->get(), Nanos(1));
    };
    std::ofstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") << 50;
    if (may_have(49) || !may_have(50)) return 1;
    std::ofstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") << 5000;
    return may_have(4999) || !may_have(5000) ? 2 : 0;
  });
  EXPECT_EQ(inside.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Spaces, TwoUsers, ::testing::Values(PortSpace::tcp, PortSpace::udp),
                         [](const auto& space) { return space.param == PortSpace::tcp ? "tcp" : "udp"; });

}  // namespace
}  // namespace ringsock::soft
