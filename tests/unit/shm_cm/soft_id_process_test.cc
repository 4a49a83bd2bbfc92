// Connection ids of two processes.
#include <sched.h>

#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

SocketAddress at(std::uint32_t port) { return SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(port)); }

/// Accepts one connection and keeps it until it is told to go, or the peer has gone (status 7).
int serve_one_of(SoftHost& host, ConnectionId& listener) {
  End server = take_request(host, listener);
  if (!server.id || !server.id->accept(with("welcome"))) return 1;
  if (next(*server.id).type != CmEventType::established) return 2;
  const bool gone = next(*server.id).type == CmEventType::disconnected;
  server.close();
  return gone ? 7 : 3;
}

int serve_one(Channel parent) {
  SoftHost host;
  auto listener = host.listener();
  parent.tell(listener->local_address().port());
  return serve_one_of(host, *listener);
}

/// A daemon: the process that listens ends, its child serves, and tells the status.
int become_daemon_and_serve(Channel parent) {
  SoftHost host;
  auto listener = host.listener();
  int gone[2];
  if (::pipe(gone) != 0) return 1;
  if (::fork() != 0) return 0;
  ::close(gone[1]);
  char byte;
  [[maybe_unused]] const auto end = ::read(gone[0], &byte, 1);  // until the one that listened has ended
  parent.tell(listener->local_address().port());
  parent.tell(static_cast<std::uint32_t>(serve_one_of(host, *listener)));
  ::_exit(0);
}

TEST(SoftIdProcesses, ConnectAndDisconnect) {
  OtherProcess other(::geteuid(), serve_one);
  const auto port = other.channel().hear();
  ASSERT_TRUE(port);
  SoftHost host;
  End client = start_connect(host, at(*port));
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::established);
  EXPECT_EQ(text(event), "welcome");
  client.close();
  EXPECT_EQ(other.wait(), 7);
}

TEST(SoftIdProcesses, AKilledServerIsADisconnect) {
  OtherProcess other(::geteuid(), serve_one);
  const auto port = other.channel().hear();
  ASSERT_TRUE(port);
  SoftHost host;
  End client = start_connect(host, at(*port));
  ASSERT_EQ(next(*client.id).type, CmEventType::established);
  other.signal(SIGKILL);
  EXPECT_EQ(next(*client.id).type, CmEventType::disconnected);
  EXPECT_EQ(host.state(*client.qp.qp), IBV_QPS_ERR);
  client.close();
}

TEST(SoftIdProcesses, AStoppedServerIsUnreachableInTime) {
  OtherProcess other(::geteuid(), serve_one);
  const auto port = other.channel().hear();
  ASSERT_TRUE(port);
  other.signal(SIGSTOP);
  SoftHost host;
  End client = start_connect(host, at(*port), {}, {.connect = {.total = Nanos(50'000'000)}, .accept = {}});
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::unreachable);
  EXPECT_EQ(event.status, ETIMEDOUT);
  client.close();
}

TEST(SoftIdProcesses, AClientOfAnotherUserIsServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  SoftHost host;
  auto listener = host.listener();
  const std::uint16_t port = listener->local_address().port();
  OtherProcess alice(kAlice, [&](Channel) {
    SoftHost mine;
    End client = start_connect(mine, at(port), with("alice"));
    const bool established = next(*client.id).type == CmEventType::established;
    client.close();
    return established ? 0 : 1;
  });
  CmEvent request = next(*listener);
  ASSERT_EQ(request.type, CmEventType::connect_request);
  EXPECT_EQ(text(request), "alice");
  End server{std::move(request.request), {}};
  server.qp = host.queue_pair(*server.id);
  EXPECT_TRUE(server.id->accept({}));
  EXPECT_EQ(alice.wait(), 0);
  EXPECT_EQ(next(*server.id).type, CmEventType::established);
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  server.close();
}

TEST(SoftIdProcesses, ADaemonsChildIsConnectedTo) {
  OtherProcess first(::geteuid(), become_daemon_and_serve);
  EXPECT_EQ(first.wait(), 0);
  const auto port = first.channel().hear();
  ASSERT_TRUE(port);
  SoftHost host;
  End client = start_connect(host, at(*port));
  EXPECT_EQ(next(*client.id).type, CmEventType::established);
  client.close();
  EXPECT_EQ(first.channel().hear(), 7U);
}

/// A container's root with the host's network is root for the kernel's listener, too; here it hides who listened.
TEST(SoftIdProcesses, ADaemonOfAPidNamespaceBelowIsNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root for a namespace";
  OtherProcess outer(0, [](Channel parent) {
    if (::unshare(CLONE_NEWPID) != 0) return 77;
    return OtherProcess(0,
                        [&](Channel) {  // its init, which goes on
                          return OtherProcess(0, [&](Channel) { return become_daemon_and_serve(parent); }).wait() +
                                 (parent.hear() ? 1 : 0);
                        })
        .wait();
  });
  const auto port = outer.channel().hear();
  ASSERT_TRUE(port);
  SoftHost host;
  End client = start_connect(host, at(*port));
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::rejected);
}

TEST(SoftIdProcesses, AnImpostorsClientIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  SoftHost host;
  auto owner = host.id();
  ASSERT_TRUE(owner->bind(kLoopback));
  const SocketAddress address = owner->local_address();
  OtherProcess impostor(kAlice, [&](Channel parent) {
    const auto acceptor = soft::Acceptor::open({PortSpace::tcp, address, false}, 8, {});
    parent.tell(acceptor ? 1 : 0);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  ASSERT_EQ(impostor.channel().hear(), 1u);
  End client = start_connect(host, address);
  const CmEvent event = next(*client.id);
  EXPECT_EQ(event.type, CmEventType::rejected);
  EXPECT_EQ(event.status, ECONNREFUSED);
  client.close();
}

/// As in a server that forks for each connection: its children close the listener.
TEST(SoftIdProcesses, AChildThatClosesTheListenerLeavesWhoIsHalfInToItsParent) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  SoftHost host;
  auto listener = host.listener();
  OtherProcess client(kAlice, [&](Channel parent) {
    SoftHost own;
    End end = start_connect(own, listener->local_address());
    parent.tell(1);
    if (!parent.hear()) return 1;
    const bool made = next(*end.id).type == CmEventType::established;
    end.close();
    return made ? 0 : 2;
  });
  ASSERT_TRUE(client.channel().hear());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(listener->next_event()) << "its memory is asked for, as a stranger's is";
  OtherProcess child(::geteuid(), [&](Channel) {
    listener.reset();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  client.channel().tell(1);
  End server = take_request(host, *listener);
  ASSERT_TRUE(server.id);
  ASSERT_TRUE(server.id->accept({}));
  EXPECT_EQ(client.wait(), 0);
}

TEST(SoftIdProcesses, AForkedWorkerSharesTheListener) {
  auto host = std::make_unique<SoftHost>();
  auto listener = host->listener();
  const SocketAddress address = listener->local_address();
  // The worker accepts with a device of its own: the parent's queue pairs are not its business.
  OtherProcess worker(::geteuid(), [&](Channel parent) {
    SoftHost mine;
    for (;;) {
      CmEvent event = next(*listener);
      if (event.type != CmEventType::connect_request) return 1;
      if (!event.request->reject(bytes("worker"))) return 2;
      parent.tell(1);
    }
  });
  for (int round = 0; round < 3; ++round) {
    End client = start_connect(*host, address);
    ASSERT_TRUE(worker.channel().hear());
    EXPECT_EQ(text(next(*client.id)), "worker");
    client.close();
  }
  // Both look; one gets it, the other finds nothing and is not kept awake.
  worker.signal(SIGKILL);
  worker.wait();
  End client = start_connect(*host, address);
  CmEvent event = next(*listener);
  ASSERT_EQ(event.type, CmEventType::connect_request);
  ASSERT_TRUE(event.request->reject(bytes("parent")));
  EXPECT_EQ(text(next(*client.id)), "parent");
  client.close();
  pollfd wait{listener->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
}

}  // namespace
}  // namespace ringsock::tests
