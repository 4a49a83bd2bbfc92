// Connector and Acceptor together, in port space UDP: requests that carry no queue pair.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <string_view>

#include "core/base/refusals.h"
#include "core/device/shm/cm/acceptor.h"
#include "core/device/shm/cm/connector.h"
#include "core/device/shm/names/port_reservation.h"
#include "tests/unit/shm_cm/other_process.h"

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

const auto kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 0);

SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  address.set_port(port);
  return address;
}

/// A listener on a port that it owns.
struct Listener {
  PortReservation port;
  std::unique_ptr<Acceptor> acceptor;

  explicit Listener(const SocketAddress& address, int backlog = 8, PortReservation::Options options = {},
                    Acceptor::Limits limits = {}) {
    EXPECT_TRUE(port.bind(PortSpace::udp, address, options));
    auto opened = Acceptor::open(port.binding(), backlog, limits);
    EXPECT_TRUE(opened);
    if (opened) acceptor = std::move(*opened);
  }
  [[nodiscard]] std::uint16_t number() const { return port.binding().address.port(); }
  [[nodiscard]] SocketAddress loopback() const { return with_port(kLoopback, number()); }
  [[nodiscard]] bool has_work() const {
    pollfd wait{acceptor->fd(), POLLIN, 0};
    return ::poll(&wait, 1, 0) == 1;
  }
};

/// The other side, by hand.
struct Client {
  PortReservation port;
  std::optional<Connector> connector;
  std::unique_ptr<Link> link;
  SocketAddress target;

  /// @return 0 once connected, else the error.
  int connect(const SocketAddress& to, ConnectTimes times = {}, Nanos now = Nanos(0)) {
    target = to;
    EXPECT_TRUE(port.bind_ephemeral(PortSpace::udp, to));
    connector.emplace(PortSpace::udp, to, port.take_named_socket(), times, now);
    return retry(now);
  }
  int retry(Nanos now) {
    auto connected = connector->attempt(now);
    if (!connected) return connected.error().code;
    link = std::make_unique<Link>(std::move(connected->socket));
    return 0;
  }
  ConnectRequest request() {
    ConnectRequest out;
    out.space = PortSpace::udp;
    out.source = port.binding().address;
    out.destination = target;
    return out;
  }
  Client& say_hello() {
    EXPECT_TRUE(link->send(LinkPacket::request, encode_request(request()).view()));
    return *this;
  }
  [[nodiscard]] bool was_dropped() const {
    link->drain();
    return link->peer_gone();
  }
};

TEST(Connecting, ARequestReachesTheListenerOfTheAddress) {
  Listener listener(kLoopback);
  Client client;
  ASSERT_EQ(client.connect(listener.loopback()), 0);
  client.say_hello();
  EXPECT_TRUE(listener.has_work());
  auto incoming = listener.acceptor->next(Nanos(0));
  ASSERT_TRUE(incoming);
  EXPECT_EQ(incoming->request.source, client.port.binding().address);
  EXPECT_EQ(incoming->peer.pid, ::getpid());
  EXPECT_TRUE(incoming->accepted_by_listening_process);
  EXPECT_EQ(listener.acceptor->next(Nanos(0)).error().code, EAGAIN);
  EXPECT_FALSE(listener.has_work());
}

TEST(Connecting, AWildcardListenerIsFoundUnderEveryAddress) {
  Listener listener(SocketAddress::wildcard(AF_INET, 0));
  Client client, other;
  EXPECT_EQ(client.connect(listener.loopback()), 0);
  EXPECT_EQ(other.connect(SocketAddress::v4(0x7f010203, listener.number())), 0);
}

TEST(Connecting, ADualStackListenerIsFoundByBothFamilies) {
  Listener listener(SocketAddress::wildcard(AF_INET6, 0));
  Client v4, v6;
  EXPECT_EQ(v4.connect(listener.loopback()), 0);
  EXPECT_EQ(v6.connect(SocketAddress::v6(in6addr_loopback, listener.number())), 0);
}

TEST(Connecting, AV6OnlyListenerIsFoundByIpv6Alone) {
  Listener listener(SocketAddress::wildcard(AF_INET6, 0), 8, {.v6_only = true});
  Client v4, v6;
  EXPECT_EQ(v4.connect(listener.loopback()), ECONNREFUSED);
  EXPECT_EQ(v6.connect(SocketAddress::v6(in6addr_loopback, listener.number())), 0);
}

TEST(Connecting, NobodyListensIsRefused) {
  PortReservation bound;
  ASSERT_TRUE(bound.bind(PortSpace::udp, kLoopback, {}));
  Client client;
  EXPECT_EQ(client.connect(bound.binding().address), ECONNREFUSED);
}

TEST(Connecting, AFullBacklogIsTriedAgainUntilThereIsRoom) {
  Listener listener(kLoopback, 0);
  Client first, second;
  ASSERT_EQ(first.connect(listener.loopback()), 0);
  ASSERT_EQ(second.connect(listener.loopback(), {}, Nanos(0)), EAGAIN);
  EXPECT_EQ(second.connector->retry_at(), Nanos(200'000));
  ASSERT_EQ(second.retry(Nanos(200'000)), EAGAIN);
  EXPECT_EQ(second.connector->retry_at(), Nanos(600'000));
  first.say_hello();
  ASSERT_TRUE(listener.acceptor->next(Nanos(0)));
  EXPECT_EQ(second.retry(Nanos(600'000)), 0);
}

TEST(Connecting, ABacklogThatStaysFullTimesOut) {
  Listener listener(kLoopback, 0);
  Client first, second;
  ASSERT_EQ(first.connect(listener.loopback()), 0);
  const ConnectTimes times{.total = Nanos(1'000'000'000)};
  ASSERT_EQ(second.connect(listener.loopback(), times), EAGAIN);
  Nanos now(0);
  int attempts = 0;
  int error = EAGAIN;
  for (; error == EAGAIN && attempts < 100; ++attempts) {
    ASSERT_LE(second.connector->retry_at() - now, Nanos(50'000'000));
    now = second.connector->retry_at();
    error = second.retry(now);
  }
  EXPECT_EQ(error, ETIMEDOUT);
  EXPECT_EQ(now, Nanos(1'000'000'000));
}

TEST(Accepting, AClientThatSaysNothingKeepsNobodyWaiting) {
  Listener listener(kLoopback);
  Client silent, talking;
  ASSERT_EQ(silent.connect(listener.loopback()), 0);
  EXPECT_EQ(listener.acceptor->next(Nanos(0)).error().code, EAGAIN);
  EXPECT_FALSE(listener.has_work());
  ASSERT_EQ(talking.connect(listener.loopback()), 0);
  talking.say_hello();
  auto incoming = listener.acceptor->next(Nanos(0));
  ASSERT_TRUE(incoming);
  EXPECT_EQ(incoming->request.source, talking.port.binding().address);

  // It can still make up its mind.
  silent.say_hello();
  EXPECT_TRUE(listener.has_work());
  incoming = listener.acceptor->next(Nanos(1));
  ASSERT_TRUE(incoming);
  EXPECT_EQ(incoming->request.source, silent.port.binding().address);
  EXPECT_FALSE(listener.acceptor->deadline());
}

TEST(Accepting, AClientThatSaysNothingForTooLongIsDropped) {
  Listener listener(kLoopback, 8, {}, {.half_open_time = Nanos(100)});
  Client silent;
  ASSERT_EQ(silent.connect(listener.loopback()), 0);
  EXPECT_FALSE(listener.acceptor->next(Nanos(5)));
  EXPECT_EQ(listener.acceptor->deadline(), Nanos(105));
  EXPECT_FALSE(listener.acceptor->next(Nanos(104)));
  EXPECT_FALSE(silent.was_dropped());
  EXPECT_FALSE(listener.acceptor->next(Nanos(105)));
  EXPECT_TRUE(silent.was_dropped());
}

TEST(Accepting, TheOldestSilentClientMakesRoomForANewOne) {
  Listener listener(kLoopback, 8, {}, {.half_open = 2});
  Client silent[3];
  for (Client& client : silent) {
    ASSERT_EQ(client.connect(listener.loopback()), 0);
    EXPECT_FALSE(listener.acceptor->next(Nanos(0)));
  }
  EXPECT_TRUE(silent[0].was_dropped());
  EXPECT_FALSE(silent[1].was_dropped());
  silent[1].say_hello();
  EXPECT_TRUE(listener.acceptor->next(Nanos(0)));
}

TEST(Accepting, AClientThatGoesAwayBeforeItSpeaksLeavesNothing) {
  Listener listener(kLoopback);
  {
    Client client;
    ASSERT_EQ(client.connect(listener.loopback()), 0);
    EXPECT_FALSE(listener.acceptor->next(Nanos(0)));
  }
  EXPECT_TRUE(listener.has_work());
  EXPECT_FALSE(listener.acceptor->next(Nanos(0)));
  EXPECT_FALSE(listener.acceptor->deadline());
  EXPECT_FALSE(listener.has_work());
}

TEST(Accepting, WhatAForkedProcessTookInWakesNobodyElse) {
  Listener listener(kLoopback);
  Client silent;
  ASSERT_EQ(silent.connect(listener.loopback()), 0);
  tests::OtherProcess worker(::geteuid(), [&](tests::Channel parent) {
    const bool waits = !listener.acceptor->next(Nanos(0)) && listener.acceptor->deadline();
    parent.tell(waits ? 1 : 0);
    [[maybe_unused]] const auto go = parent.hear();
    return listener.acceptor->next(Nanos(0)) ? 0 : 1;
  });
  ASSERT_EQ(worker.channel().hear(), 1u);
  silent.say_hello();
  EXPECT_FALSE(listener.has_work());
  EXPECT_FALSE(listener.acceptor->next(Nanos(0)));
  worker.channel().tell(1);
  EXPECT_EQ(worker.wait(), 0);
}

TEST(Accepting, GarbageIsDropped) {
  Listener listener(kLoopback);
  Client garbage, wrong_type, wrong_space, wrong_port;
  ASSERT_EQ(garbage.connect(listener.loopback()), 0);
  const std::byte bytes[20]{};
  ASSERT_TRUE(garbage.link->send(LinkPacket::request, bytes));

  ASSERT_EQ(wrong_type.connect(listener.loopback()), 0);
  ASSERT_TRUE(wrong_type.link->send(LinkPacket::reply, encode_request(wrong_type.request()).view()));

  ASSERT_EQ(wrong_space.connect(listener.loopback()), 0);
  ConnectRequest request = wrong_space.request();
  request.space = PortSpace::tcp;
  ASSERT_TRUE(wrong_space.link->send(LinkPacket::request, encode_request(request).view()));

  ASSERT_EQ(wrong_port.connect(listener.loopback()), 0);
  request = wrong_port.request();
  request.destination.set_port(1);
  ASSERT_TRUE(wrong_port.link->send(LinkPacket::request, encode_request(request).view()));

  EXPECT_EQ(listener.acceptor->next(Nanos(0)).error().code, EAGAIN);
  for (Client* client : {&garbage, &wrong_type, &wrong_space, &wrong_port}) EXPECT_TRUE(client->was_dropped());
}

TEST(Accepting, OneCallDealsWithFewBadRequests) {
  Listener listener(kLoopback, 64);
  std::array<Client, 3 * Acceptor::kMaxWork> bad;
  const std::byte bytes[20]{};
  for (Client& client : bad) {
    ASSERT_EQ(client.connect(listener.loopback()), 0);
    ASSERT_TRUE(client.link->send(LinkPacket::request, bytes));
  }
  Client good;
  ASSERT_EQ(good.connect(listener.loopback()), 0);
  good.say_hello();
  const std::uint64_t before = refusals_counted(Refusal::request);
  for (int call = 1; call <= 3; ++call) {
    EXPECT_EQ(listener.acceptor->next(Nanos(0)).error().code, EAGAIN);
    EXPECT_EQ(refusals_counted(Refusal::request) - before, static_cast<unsigned>(call * Acceptor::kMaxWork));
    EXPECT_TRUE(listener.has_work()) << "what is left is still to be seen";
  }
  EXPECT_TRUE(listener.acceptor->next(Nanos(0)));
}

TEST(Accepting, HalfOpenConnectionsThatKeepSendingLeaveTheOthersTheirTurn) {
  Listener listener(kLoopback, 64);
  std::array<Client, 2 * Acceptor::kMaxWork> busy;
  for (Client& client : busy) ASSERT_EQ(client.connect(listener.loopback()), 0);
  while (listener.has_work()) ASSERT_FALSE(listener.acceptor->next(Nanos(0)));
  for (Client& client : busy) client.link->ring();
  Client good;
  ASSERT_EQ(good.connect(listener.loopback()), 0);
  good.say_hello();
  EXPECT_TRUE(listener.acceptor->next(Nanos(0)));
}

// What its connect(2) said first counts, as in the backlog of a TCP listener.
TEST(Accepting, ARequestThatComesLateKeepsItsPlace) {
  Listener listener(kLoopback, 64);
  Client first, second;
  ASSERT_EQ(first.connect(listener.loopback()), 0);
  EXPECT_FALSE(listener.acceptor->next(Nanos(0))) << "it has not said what it wants";
  first.say_hello();
  ASSERT_EQ(second.connect(listener.loopback()), 0);
  second.say_hello();
  const auto earlier = listener.acceptor->next(Nanos(0));
  ASSERT_TRUE(earlier);
  const auto later = listener.acceptor->next(Nanos(0));
  ASSERT_TRUE(later);
  EXPECT_TRUE(earlier->request.source == first.request().source);
  EXPECT_TRUE(later->request.source == second.request().source);
}

TEST(Accepting, PrivateDataIsLookedAtBeforeTheSenderIs) {
  Listener listener(kLoopback);
  listener.acceptor->set_private_data_check([](std::span<const std::byte> data) { return !data.empty(); });
  Client without, with;
  ASSERT_EQ(without.connect(listener.loopback()), 0);
  without.say_hello();
  const std::uint64_t before = refusals_counted(Refusal::request);
  EXPECT_FALSE(listener.acceptor->next(Nanos(0)));
  EXPECT_EQ(refusals_counted(Refusal::request), before + 1);
  EXPECT_TRUE(without.was_dropped());
  ASSERT_EQ(with.connect(listener.loopback()), 0);
  ConnectRequest request = with.request();
  const std::byte data[1]{};
  ASSERT_TRUE(request.private_data.assign(data, sizeof data));
  ASSERT_TRUE(with.link->send(LinkPacket::request, encode_request(request).view()));
  EXPECT_TRUE(listener.acceptor->next(Nanos(0)));
}

TEST(Accepting, OnlyOneListensUnderAName) {
  Listener listener(kLoopback);
  EXPECT_EQ(Acceptor::open(listener.port.binding(), 1, {}).error().code, EADDRINUSE);
}

TEST(Accepting, AConnectionThatOutlivesItsListenerDoesNotKeepThePort) {
  PortBinding where;
  std::shared_ptr<Link> accepted;
  Client client;
  {
    Listener listener(kLoopback);
    where = listener.port.binding();
    ASSERT_EQ(client.connect(listener.loopback()), 0);
    client.say_hello();
    auto incoming = listener.acceptor->next(Nanos(0));
    ASSERT_TRUE(incoming);
    accepted = incoming->link;
    accepted->set_manager(nullptr);
  }
  PortReservation again;
  ASSERT_TRUE(again.bind(PortSpace::udp, where.address, {.reuse_address = true}));
  EXPECT_TRUE(Acceptor::open(again.binding(), 1, {}));
}

}  // namespace
}  // namespace ringsock::soft
