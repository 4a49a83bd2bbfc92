// The life of a connection id: every event and error.
#include <sys/resource.h>

#include "core/device/shm/queue/completion_queue.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

constexpr int kRefused = ECONNREFUSED;

int error_of(const Status& status) { return status ? 0 : status.error().code; }
int nothing_to_say(ConnectionId& id) {
  const auto event = id.next_event();
  return event ? 0 : event.error().code;
}

End start_impatient_connect(SoftHost& host, ConnectionId& listener, Nanos patience) {
  return start_connect(host, listener.local_address(), {}, {.connect = {.total = patience}, .accept = {}});
}

TEST(SoftId, ConnectsAcceptsAndCarriesPrivateData) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address(), with("from the client"));

  CmEvent request = next(*listener);
  ASSERT_EQ(request.type, CmEventType::connect_request);
  EXPECT_EQ(text(request), "from the client");
  End server{std::move(request.request), {}};
  EXPECT_EQ(server.id->local_address(), listener->local_address());
  EXPECT_EQ(server.id->peer_address(), client.id->local_address());
  EXPECT_EQ(client.id->peer_address(), listener->local_address());
  server.qp = host.queue_pair(*server.id);
  ASSERT_TRUE(server.id->accept(with("from the server")));
  EXPECT_EQ(host.state(*server.qp.qp), IBV_QPS_RTS);
  EXPECT_EQ(next(*server.id).type, CmEventType::established);

  const CmEvent established = next(*client.id);
  ASSERT_EQ(established.type, CmEventType::established);
  EXPECT_EQ(text(established), "from the server");
  EXPECT_EQ(host.state(*client.qp.qp), IBV_QPS_RTS);
  server.close();
  client.close();
}

// A server sleeps right after accept(), before its client has read the answer. A client puts fences behind its first
// entries, so the server need not interrupt the other CPUs.
TEST(SoftId, WhoSleepsBeforeItsPeerIsConnectedNeedsNoBarrier) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  End server = take_request(host, *listener);
  ASSERT_TRUE(server.id->accept({}));
  const auto needs_barrier = [](End& end) {
    return static_cast<soft::CompletionQueue*>(end.qp.qp->recv_cq)->arm(soft::ArmKind::any);
  };
  EXPECT_FALSE(needs_barrier(server));
  ASSERT_EQ(next(*client.id).type, CmEventType::established);
  EXPECT_FALSE(needs_barrier(client));
  EXPECT_FALSE(needs_barrier(server));
  server.close();
  client.close();
}

/// A listener whose port the kernel's listener has, too, as that of a preloaded program.
struct ListenerWithKernels {
  explicit ListenerWithKernels(SoftHost& host) : kernels(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(::bind(kernels.get(), kLoopback.get(), kLoopback.length()), 0);
    EXPECT_EQ(::listen(kernels.get(), 8), 0);
    id = host.id();
    id->share_port_with(kernels.get());
    EXPECT_TRUE(id->bind(*name_by(::getsockname, kernels.get(), "getsockname")));
    EXPECT_TRUE(id->listen(8));
  }
  UniqueFd kernels;
  std::unique_ptr<ConnectionId> id;
};

bool is_woken(ConnectionId& listener) {
  pollfd entry{listener.event_fd(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

// The listener of the last milliseconds need not be asked who it is before the queue pair is made, so it is not woken
// before the request comes.
TEST(SoftId, TheNextConnectionWakesTheListenerOnceItsRequestIsReady) {
  SoftHost host;
  ListenerWithKernels listener(host);
  bool was_woken_once = false;
  for (int attempt = 0; attempt < 100 && !was_woken_once; ++attempt) {  // what is remembered may be too old
    End client{host.id(), {}};
    resolve(*client.id, listener.id->local_address());
    client.qp = host.queue_pair(*client.id);
    const bool early = is_woken(*listener.id);
    ASSERT_TRUE(client.id->connect({}));
    was_woken_once = !early;
    End server = take_request(host, *listener.id);
    ASSERT_TRUE(server.id->accept({}));
    EXPECT_EQ(next(*client.id).type, CmEventType::established);
    server.close();
    client.close();
  }
  EXPECT_TRUE(was_woken_once);
}

TEST(SoftId, AnotherListenerThanTheOneBeforeIsReachedToo) {
  SoftHost host;
  SocketAddress destination;
  for (int listeners = 0; listeners < 20; ++listeners) {
    ListenerWithKernels listener(host);
    for (int clients = 0; clients < 2; ++clients) {
      End client = start_connect(host, listener.id->local_address());
      End server = take_request(host, *listener.id);
      ASSERT_TRUE(server.id->accept({}));
      EXPECT_EQ(next(*client.id).type, CmEventType::established);
      server.close();
      client.close();
    }
    destination = listener.id->local_address();
  }
  End nobody = start_connect(host, destination);
  EXPECT_EQ(next(*nobody.id).status, kRefused) << "it ended after the last connection";
}

TEST(SoftId, TheMostPrivateDataArrivesAndMoreIsInvalid) {
  SoftHost host;
  auto listener = host.listener();
  const std::string much(197, 'x');
  const auto most = [&](std::size_t size) { return std::string_view(much).substr(0, size); };
  End client{host.id(), {}};
  resolve(*client.id, listener->local_address());
  client.qp = host.queue_pair(*client.id);
  EXPECT_EQ(error_of(client.id->connect(with(most(57)))), EINVAL);
  ASSERT_TRUE(client.id->connect(with(most(56))));
  CmEvent request = next(*listener);
  EXPECT_EQ(text(request), most(56));
  EXPECT_EQ(error_of(request.request->reject(bytes(most(149)))), EINVAL);
  End server{std::move(request.request), {}};
  server.qp = host.queue_pair(*server.id);
  EXPECT_EQ(error_of(server.id->accept(with(most(197)))), EINVAL);
  ASSERT_TRUE(server.id->accept(with(most(196))));
  EXPECT_EQ(text(next(*client.id)), most(196));
  server.close();
  client.close();
}

TEST(SoftId, NobodyListensIsRejected) {
  SoftHost host;
  auto bound = host.id();
  ASSERT_TRUE(bound->bind(kLoopback));
  End client = start_connect(host, bound->local_address());
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::rejected);
  EXPECT_EQ(event.status, kRefused);
  EXPECT_EQ(client.id->event_fd(), -1);
  client.close();
}

TEST(SoftId, ARejectBringsItsPrivateData) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  CmEvent request = next(*listener);
  ASSERT_TRUE(request.request->reject(bytes("not today")));
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::rejected);
  EXPECT_EQ(event.status, kRefused);
  EXPECT_EQ(text(event), "not today");
  client.close();
}

TEST(SoftId, DroppingARequestRejectsIt) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  next(*listener);
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::rejected);
  EXPECT_EQ(event.status, kRefused);
  client.close();
}

TEST(SoftId, AListenerThatClosesRejectsWhoeverWaits) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  listener.reset();
  EXPECT_EQ(next(*client.id).type, CmEventType::rejected);
  client.close();
}

TEST(SoftId, AListenerThatNeverAnswersIsUnreachableInTime) {
  SoftHost host;
  auto listener = host.listener();
  const auto began = monotonic_now();
  End client = start_impatient_connect(host, *listener, Nanos(30'000'000));
  ASSERT_TRUE(client.id->next_deadline());
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::unreachable);
  EXPECT_EQ(event.status, ETIMEDOUT);
  EXPECT_GE(monotonic_now() - began, Nanos(30'000'000));
  client.close();
}

TEST(SoftId, WithAnotherWayAListenerThatDoesNotAnswerIsRemembered) {
  SoftHost host;
  auto listener = host.listener();
  End client{host.id(), {}};
  client.id->have_other_way(Nanos(20'000'000));
  resolve(*client.id, listener->local_address());
  client.qp = host.queue_pair(*client.id);
  ASSERT_TRUE(client.id->connect({}));
  EXPECT_FALSE(host.device->was_silent(PortSpace::tcp, listener->local_address()));
  EXPECT_EQ(next(*client.id).type, CmEventType::unreachable);
  EXPECT_TRUE(host.device->was_silent(PortSpace::tcp, listener->local_address()));
  EXPECT_FALSE(host.device->was_silent(PortSpace::udp, listener->local_address()));
  client.close();
}

/// The time of a client may be over in the moment between the listener's decision and its answer.
TEST(SoftId, AClientWaitsALittleForAListenerThatHasDecidedToAnswer) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_impatient_connect(host, *listener, Nanos(10'000'000));
  End server = take_request(host, *listener);
  soft::MappedSegment& shared = soft::wiring_of(*client.qp.qp).own_segment();
  ASSERT_TRUE(shared.settle_request(soft::RequestState::accepted));
  ::usleep(20'000);
  EXPECT_EQ(nothing_to_say(*client.id), EAGAIN);
  shared.open_request();
  ASSERT_TRUE(server.id->accept({}));
  EXPECT_EQ(next(*client.id).type, CmEventType::established);
  server.close();
  client.close();
}

TEST(SoftId, AClientDoesNotWaitForEverForAListenerThatOnlySaysSo) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_impatient_connect(host, *listener, Nanos(10'000'000));
  ASSERT_TRUE(soft::wiring_of(*client.qp.qp).own_segment().settle_request(soft::RequestState::accepted));
  EXPECT_EQ(next(*client.id).type, CmEventType::unreachable);
  client.close();
}

TEST(SoftId, AListenerIsToldThatItsClientHasGivenUp) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  End server = take_request(host, *listener);
  ASSERT_TRUE(soft::wiring_of(*client.qp.qp).own_segment().settle_request(soft::RequestState::withdrawn));
  EXPECT_EQ(error_of(server.id->accept({})), ECONNRESET) << "though it would still get the answer";
  server.close();
  client.close();
}

TEST(SoftId, ARequestWhoseClientHasLeftIsNotTold) {
  SoftHost host;
  auto listener = host.listener();
  for (int i = 0; i < 5; ++i) {
    End gone = start_connect(host, listener->local_address());
    gone.close();
  }
  End client = start_connect(host, listener->local_address());
  End server = take_request(host, *listener);
  EXPECT_EQ(server.id->peer_address(), client.id->local_address());
  EXPECT_EQ(nothing_to_say(*listener), EAGAIN);
  server.close();
  client.close();
}

TEST(SoftId, AFullBacklogDelaysAConnectUntilThereIsRoom) {
  SoftHost host;
  auto listener = host.listener(kLoopback, 0);
  End first = start_connect(host, listener->local_address());
  End second = start_connect(host, listener->local_address());
  EXPECT_EQ(nothing_to_say(*second.id), EAGAIN);
  EXPECT_EQ(second.id->event_fd(), -1);
  ASSERT_TRUE(second.id->next_deadline());

  End served = take_request(host, *listener);
  EXPECT_TRUE(served.id->accept({}));
  EXPECT_EQ(next(*first.id).type, CmEventType::established);
  while (second.id->event_fd() < 0) {
    EXPECT_EQ(nothing_to_say(*second.id), EAGAIN);
  }
  End served_next = take_request(host, *listener);
  EXPECT_TRUE(served_next.id->accept({}));
  EXPECT_EQ(next(*second.id).type, CmEventType::established);
  for (End* end : {&first, &second, &served, &served_next}) end->close();
}

TEST(SoftId, ABacklogThatStaysFullIsUnreachable) {
  SoftHost host;
  auto listener = host.listener(kLoopback, 0);
  End first = start_connect(host, listener->local_address());
  End second =
      start_connect(host, listener->local_address(), {}, {.connect = {.total = Nanos(20'000'000)}, .accept = {}});
  const CmEvent event = next(*second.id);
  EXPECT_EQ(event.type, CmEventType::unreachable);
  EXPECT_EQ(event.status, ETIMEDOUT);
  first.close();
  second.close();
}

TEST(SoftId, AnAddressOfAnotherHostIsAnAddressError) {
  SoftHost host;
  const std::pair<SocketAddress, int> cases[] = {
      {SocketAddress::v4(0xc0000201, 80), EHOSTUNREACH},
      {SocketAddress::v4(0xe0000001, 80), ENETUNREACH},
      {SocketAddress::v4(INADDR_BROADCAST, 80), ENETUNREACH},
      {SocketAddress::v4(INADDR_LOOPBACK, 0), ECONNREFUSED},
  };
  for (const auto& [address, status] : cases) {
    for (const bool bound : {false, true}) {
      auto id = host.id();
      if (bound) {
        ASSERT_TRUE(id->bind(SocketAddress::wildcard(AF_INET, 0)));
      }
      ASSERT_TRUE(id->resolve_addr(address, Nanos(0)));
      const CmEvent event = next(*id);
      EXPECT_EQ(event.type, CmEventType::addr_error) << address.to_string();
      EXPECT_EQ(event.status, status) << address.to_string();
    }
  }
}

TEST(SoftId, TheWildcardAsDestinationIsLoopback) {
  SoftHost host;
  auto listener = host.listener(SocketAddress::wildcard(AF_INET6, 0));
  const std::uint16_t port = listener->local_address().port();
  auto v4 = host.id();
  resolve(*v4, SocketAddress::wildcard(AF_INET, port));
  EXPECT_EQ(v4->peer_address(), SocketAddress::v4(INADDR_LOOPBACK, port));
  auto v6 = host.id();
  resolve(*v6, SocketAddress::wildcard(AF_INET6, port));
  EXPECT_EQ(v6->peer_address(), SocketAddress::v6(in6addr_loopback, port));
}

TEST(SoftId, AMappedDestinationReachesAnIpv4Listener) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address().mapped());
  End server = take_request(host, *listener);
  EXPECT_EQ(server.id->peer_address().family(), AF_INET);
  server.close();
  client.close();
}

TEST(SoftId, ABoundClientComesFromItsPort) {
  SoftHost host;
  auto listener = host.listener();
  End client{host.id(), {}};
  ASSERT_TRUE(client.id->bind(SocketAddress::wildcard(AF_INET, 0)));
  const std::uint16_t port = client.id->local_address().port();
  resolve(*client.id, listener->local_address());
  EXPECT_EQ(client.id->local_address(), SocketAddress::v4(INADDR_LOOPBACK, port));
  client.qp = host.queue_pair(*client.id);
  ASSERT_TRUE(client.id->connect({}));
  End server = take_request(host, *listener);
  EXPECT_EQ(server.id->peer_address(), SocketAddress::v4(INADDR_LOOPBACK, port));
  server.close();
  client.close();
}

TEST(SoftId, ConnectingIdsHavePortsOfTheirOwn) {
  SoftHost host;
  auto listener = host.listener();
  auto first = host.id();
  auto second = host.id();
  resolve(*first, listener->local_address());
  resolve(*second, listener->local_address());
  EXPECT_NE(first->local_address().port(), second->local_address().port());
  auto third = host.id();
  EXPECT_EQ(error_of(third->bind(first->local_address())), EADDRINUSE);
}

TEST(SoftId, ADisconnectIsHeardOnBothSidesOnce) {
  SoftHost host;
  auto listener = host.listener();
  auto [client, server] = connect(host, *listener);
  ASSERT_TRUE(client.id->disconnect());
  EXPECT_EQ(host.state(*client.qp.qp), IBV_QPS_ERR);
  EXPECT_EQ(next(*client.id).type, CmEventType::disconnected);
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  EXPECT_EQ(host.state(*server.qp.qp), IBV_QPS_ERR);
  EXPECT_EQ(nothing_to_say(*client.id), EAGAIN);
  EXPECT_EQ(nothing_to_say(*server.id), EAGAIN);
  EXPECT_EQ(server.id->event_fd(), -1);
  EXPECT_EQ(error_of(server.id->disconnect()), 0);
  server.close();
  client.close();
}

/// The peer's thread lost the CPU between its last packet and the end of its link.
TEST(SoftId, ADisconnectEndsTheQueuePairAlthoughTheLinkIsStillOpen) {
  SoftHost host;
  auto listener = host.listener();
  auto [client, server] = connect(host, *listener);
  const auto packet = soft::LinkPacket::disconnect;
  ASSERT_EQ(::send(client.id->event_fd(), &packet, sizeof packet, 0), 1);
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  EXPECT_EQ(host.state(*server.qp.qp), IBV_QPS_ERR);
  server.close();
  client.close();
}

TEST(SoftId, AnIdThatIsDestroyedDisconnectsItsPeer) {
  SoftHost host;
  auto listener = host.listener();
  auto [client, server] = connect(host, *listener);
  client.close();
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  EXPECT_EQ(host.state(*server.qp.qp), IBV_QPS_ERR);
  server.close();
}

TEST(SoftId, ARequesterThatGoesAwayIsAConnectErrorOfItsRequest) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  End server = take_request(host, *listener);
  client.close();
  const CmEvent event = next(*server.id);
  EXPECT_EQ(event.type, CmEventType::connect_error);
  EXPECT_EQ(event.status, ECONNRESET);
  EXPECT_EQ(error_of(server.id->accept({})), EINVAL);
  server.close();
}

TEST(SoftId, AcceptingARequesterThatHasGoneIsAReset) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  End server = take_request(host, *listener);
  client.close();
  EXPECT_EQ(error_of(server.id->accept({})), ECONNRESET);
  server.close();
}

TEST(SoftId, WithAChannelTheChannelWakesForItsEventsToo) {
  SoftHost host(true);
  auto listener = host.listener();
  auto [client, server] = connect(host, *listener);
  EXPECT_EQ(server.id->event_fd(), -1);
  EXPECT_EQ(nothing_to_say(*server.id), EAGAIN);
  ASSERT_TRUE(client.id->disconnect());

  // The channel becomes readable, its owner looks for completions, and the event has not been lost.
  pollfd wait{host.channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 5000), 1);
  while (true) {
    auto cq = host.device->get_cq_event(*host.channel);
    if (!cq) break;
    host.device->ack_cq_events(**cq, 1);
  }
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  server.close();
  client.close();
}

TEST(SoftId, AListenerWithoutDescriptorsSaysSoAndGoesOnLater) {
  SoftHost host;
  auto listener = host.listener();
  End client = start_connect(host, listener->local_address());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int error = nothing_to_say(*listener);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, EMFILE);
  EXPECT_EQ(next(*listener).type, CmEventType::connect_request);
  client.close();
}

TEST(SoftId, CallsInTheWrongOrderAreInvalid) {
  SoftHost host;
  auto id = host.id();
  EXPECT_EQ(error_of(id->listen(1)), EINVAL);
  EXPECT_EQ(error_of(id->resolve_route(Nanos(0))), EINVAL);
  EXPECT_EQ(error_of(id->connect({})), EINVAL);
  EXPECT_EQ(error_of(id->accept({})), EINVAL);
  EXPECT_EQ(error_of(id->reject({})), EINVAL);
  EXPECT_EQ(error_of(id->disconnect()), EINVAL);
  ASSERT_TRUE(id->bind(kLoopback));
  EXPECT_EQ(error_of(id->bind(kLoopback)), EINVAL);
  ASSERT_TRUE(id->listen(1));
  EXPECT_EQ(error_of(id->listen(5)), 0);  // a new backlog
  EXPECT_EQ(error_of(id->resolve_addr(kLoopback, Nanos(0))), EINVAL);
}

TEST(SoftId, OnlyOneOfTwoThatReuseAPortMayListen) {
  SoftHost host;
  auto first = host.id();
  auto second = host.id();
  first->set_reuse_address(true);
  second->set_reuse_address(true);
  ASSERT_TRUE(first->bind(kLoopback));
  ASSERT_TRUE(second->bind(SocketAddress::wildcard(AF_INET, first->local_address().port())));
  ASSERT_TRUE(first->listen(1));
  EXPECT_EQ(error_of(second->listen(1)), EADDRINUSE);
  first.reset();
  EXPECT_EQ(error_of(second->listen(1)), 0);
}

TEST(SoftId, AListenerCanBeReplacedWhileItsConnectionsLive) {
  SoftHost host;
  auto listener = host.listener();
  const SocketAddress address = listener->local_address();
  auto [client, server] = connect(host, *listener);
  listener.reset();
  auto next_one = host.id();
  next_one->set_reuse_address(true);
  ASSERT_TRUE(next_one->bind(address));
  ASSERT_TRUE(next_one->listen(1));
  server.close();
  client.close();
}

}  // namespace
}  // namespace ringsock::tests
