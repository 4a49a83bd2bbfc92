// Who may connect to whom, with real users. All run as root and become somebody else in a child.
#include <gtest/gtest.h>

#include "core/device/soft/cm/acceptor.h"
#include "core/device/soft/cm/connector.h"
#include "core/device/soft/cm/port_owner.h"
#include "core/device/soft/cm/port_reservation.h"
#include "tests/unit/soft_cm/other_process.h"

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
  void SetUp() override {
    if (::geteuid() != kRoot) GTEST_SKIP() << "needs root to be several users";
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
  EXPECT_EQ(connect_as(kAlice, *port), 0);
}

/// The server's side of the rule, in port space UDP, whose requests carry no queue pair.
class Requests : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != kRoot) GTEST_SKIP() << "needs root to be several users";
    ASSERT_TRUE(port_.bind(PortSpace::udp, kLoopback, {}));
    auto opened = Acceptor::open(port_.binding(), 8, {});
    ASSERT_TRUE(opened);
    acceptor_ = std::move(*opened);
  }
  /// A client of that user sends a request that names `source`, or with 0 a port of its own.
  bool request_is_taken(uid_t uid, std::uint16_t source) {
    OtherProcess client(uid, [&](Channel parent) {
      PortReservation own;
      if (!own.bind_ephemeral(PortSpace::udp, kLoopback)) return 1;
      Connector connector(PortSpace::udp, port_.binding().address, own.take_named_socket(), {}, Nanos(0));
      auto connected = connector.attempt(Nanos(0));
      if (!connected) return 2;
      Link link(std::move(connected->socket));
      ConnectRequest request;
      request.space = PortSpace::udp;
      request.source = source == 0 ? own.binding().address : at(source);
      request.destination = port_.binding().address;
      if (!link.send(LinkPacket::request, encode_request(request).view())) return 3;
      parent.tell(1);
      [[maybe_unused]] const auto end = parent.hear();
      return 0;
    });
    EXPECT_TRUE(client.channel().hear());
    return static_cast<bool>(acceptor_->next(Nanos(0)));
  }

  PortReservation port_;
  std::unique_ptr<Acceptor> acceptor_;
};

TEST_F(Requests, OfAnotherUserAreTakenWhenTheirSourcePortIsTheirs) { EXPECT_TRUE(request_is_taken(kAlice, 0)); }

TEST_F(Requests, OfAnotherUserWhoLiesAboutTheSourcePortAreDropped) {
  PortReservation roots;
  ASSERT_TRUE(roots.bind(PortSpace::udp, kLoopback, {}));
  EXPECT_FALSE(request_is_taken(kAlice, roots.binding().address.port()));  // somebody else's
  EXPECT_FALSE(request_is_taken(kAlice, 1));                               // nobody's
}

TEST_F(Requests, OfAnotherUserAreDroppedByAListenerWhoDoesNotOwnItsPort) {
  const SocketAddress address = port_.binding().address;
  acceptor_.reset();
  port_ = PortReservation{};
  auto opened = Acceptor::open({PortSpace::udp, address, false}, 8, {});
  ASSERT_TRUE(opened);
  OtherProcess client(kAlice, [&](Channel parent) {
    PortReservation own;
    auto socket = make_link_socket();
    if (!socket || !own.bind_ephemeral(PortSpace::udp, kLoopback)) return 1;
    const AbstractAddress name(listening_name({PortSpace::udp, address, false}));
    // Without the check that an honest client makes.
    if (::connect(socket->get(), name.get(), name.length) != 0) return 2;
    Link link(std::move(*socket));
    ConnectRequest request;
    request.space = PortSpace::udp;
    request.source = own.binding().address;
    request.destination = address;
    if (!link.send(LinkPacket::request, encode_request(request).view())) return 3;
    parent.tell(1);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  ASSERT_TRUE(client.channel().hear());
  EXPECT_FALSE((*opened)->next(Nanos(0)));
}

INSTANTIATE_TEST_SUITE_P(Spaces, TwoUsers, ::testing::Values(PortSpace::tcp, PortSpace::udp),
                         [](const auto& space) { return space.param == PortSpace::tcp ? "tcp" : "udp"; });

}  // namespace
}  // namespace ringsock::soft
