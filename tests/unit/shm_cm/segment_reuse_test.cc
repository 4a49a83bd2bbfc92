// Connections one after the other: when a segment of an earlier one serves again, and when it must not.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ranges>
#include <string>

#include "core/device/shm/memory/segment_cache.h"
#include "tests/unit/shm_cm/memory_inode.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

using soft::segment_cache;

bool is_zero(const verbs::ConnectionQp& qp) {
  return std::ranges::all_of(qp.receive_memory, [](std::byte value) { return value == std::byte{0}; });
}

class SegmentReuse : public ::testing::Test {
 protected:
  SegmentReuse() { segment_cache().clear(); }

  SoftHost host_;
  std::unique_ptr<ConnectionId> listener_ = host_.listener();
};

TEST_F(SegmentReuse, TheNextConnectionUsesTheSegmentOfTheLast) {
  Connection first = connect(host_, *listener_);
  const ino_t inode = inode_of(first.client.qp);
  EXPECT_EQ(inode_of(first.server.qp), inode);
  const void* const memory = first.server.qp.receive_memory.data();
  first.client.close();
  first.server.close();
  EXPECT_EQ(segment_cache().idle(), 2u);
  Connection second = connect(host_, *listener_);
  EXPECT_EQ(inode_of(second.client.qp), inode);
  EXPECT_EQ(second.server.qp.receive_memory.data(), memory);
}

TEST_F(SegmentReuse, NothingOfTheOldConnectionIsSeen) {
  ino_t inode = 0;
  for (int round = 0; round < 3; ++round) {
    Connection both = connect(host_, *listener_);
    if (round != 0) {
      EXPECT_EQ(inode_of(both.client.qp), inode);
    }
    inode = inode_of(both.client.qp);
    EXPECT_TRUE(is_zero(both.client.qp));
    EXPECT_TRUE(is_zero(both.server.qp));
    // A message that nobody takes, and data that nobody asks for.
    ibv_recv_wr receive{}, *bad_receive = nullptr;
    ASSERT_EQ(ibv_post_recv(both.server.qp.qp.get(), &receive, &bad_receive), 0);
    ibv_wc completion{};
    EXPECT_EQ(ibv_poll_cq(host_.cq.get(), 1, &completion), 0) << "an old message came out of a new connection";
    std::string text(64, 'x');
    ibv_sge piece{reinterpret_cast<std::uint64_t>(text.data()), static_cast<std::uint32_t>(text.size()), 0};
    ibv_send_wr send{}, *bad_send = nullptr;
    send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.send_flags = IBV_SEND_INLINE;
    send.sg_list = &piece;
    send.num_sge = 1;
    send.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(both.server.qp.receive_memory.data()) + 1000;
    send.wr.rdma.rkey = both.server.qp.receive_mr->rkey;
    ASSERT_EQ(ibv_post_send(both.client.qp.qp.get(), &send, &bad_send), 0);
    std::ranges::fill(both.client.qp.receive_memory, std::byte{0xaa});
    both.server.close();
    both.client.close();
  }
}

TEST_F(SegmentReuse, NotWhileThePeerStillHasIt) {
  Connection first = connect(host_, *listener_);
  const ino_t inode = inode_of(first.client.qp);
  first.client.close();
  Connection second = connect(host_, *listener_);
  EXPECT_NE(inode_of(second.client.qp), inode);
  EXPECT_EQ(inode_of(first.server.qp), inode);
}

TEST_F(SegmentReuse, NotAcrossAFork) {
  connect(host_, *listener_);
  ASSERT_EQ(segment_cache().idle(), 2u);
  Connection open = connect(host_, *listener_);
  const ino_t inode = inode_of(open.client.qp);
  OtherProcess child(::geteuid(), [&](Channel) {
    const bool empty = segment_cache().idle() == 0;
    open.client.close();
    open.server.close();
    return empty && segment_cache().idle() == 0 ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(segment_cache().idle(), 0u);
  // Kept open by nothing but its number: the child might have had it.
  Connection next = connect(host_, *listener_);
  EXPECT_NE(inode_of(next.client.qp), inode);
  open.client.close();
  open.server.close();
  EXPECT_EQ(segment_cache().idle(), 0u);
}

/// Accepts connections until the parent is gone, each closed when its client has gone; tells the inode of each.
int serve(Channel parent, ConnectionId& listener) {
  SoftHost host;
  for (;;) {
    End server = take_request(host, listener);
    if (!server.id || !is_zero(server.qp) || !server.id->accept({})) return 1;
    if (next(*server.id).type != CmEventType::established) return 2;
    const ino_t inode = inode_of(server.qp);
    std::ranges::fill(server.qp.receive_memory, std::byte{0x55});
    if (next(*server.id).type != CmEventType::disconnected) return 3;
    server.close();
    parent.tell(static_cast<std::uint32_t>(inode));
  }
}

int serve_on_own_port(Channel parent) {
  SoftHost host;
  auto listener = host.listener();
  parent.tell(listener->local_address().port());
  return serve(parent, *listener);
}

/// The inode of the segment of a connection that is over on both sides when this returns.
ino_t connect_and_close(SoftHost& host, std::uint32_t port, const Channel& server) {
  End client = start_connect(host, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(port)));
  EXPECT_EQ(next(*client.id).type, CmEventType::established);
  EXPECT_TRUE(is_zero(client.qp));
  const ino_t inode = inode_of(client.qp);
  client.close();
  EXPECT_EQ(server.hear(), static_cast<std::uint32_t>(inode)) << "the server knows the same one";
  return inode;
}

TEST_F(SegmentReuse, HappensBetweenProcesses) {
  OtherProcess server(::geteuid(), serve_on_own_port);
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  const ino_t first = connect_and_close(host_, *port, server.channel());
  EXPECT_EQ(connect_and_close(host_, *port, server.channel()), first);
  EXPECT_EQ(connect_and_close(host_, *port, server.channel()), first);
}

TEST_F(SegmentReuse, NothingIsKeptOfAServerThatDied) {
  OtherProcess server(::geteuid(), serve_on_own_port);
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  End client = start_connect(host_, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port)));
  EXPECT_EQ(next(*client.id).type, CmEventType::established);
  server.signal(SIGKILL);
  EXPECT_EQ(next(*client.id).type, CmEventType::disconnected);
  client.close();
  EXPECT_EQ(segment_cache().idle(), 0u);
}

TEST_F(SegmentReuse, NothingIsKeptOfAClientThatDied) {
  OtherProcess client(::geteuid(), [&](Channel) {
    SoftHost host;
    const End connected = start_connect(host, listener_->local_address());
    return next(*connected.id).type == CmEventType::established && ::pause() == 0 ? 0 : 1;
  });
  End server = take_request(host_, *listener_);
  ASSERT_TRUE(server.id->accept({}));
  EXPECT_EQ(next(*server.id).type, CmEventType::established);
  client.signal(SIGKILL);
  EXPECT_EQ(next(*server.id).type, CmEventType::disconnected);
  server.close();
  EXPECT_EQ(segment_cache().idle(), 0u);
}

TEST_F(SegmentReuse, HappensBetweenUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  OtherProcess server(kAlice, serve_on_own_port);
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  const ino_t first = connect_and_close(host_, *port, server.channel());
  EXPECT_EQ(connect_and_close(host_, *port, server.channel()), first);
  EXPECT_EQ(connect_and_close(host_, *port, server.channel()), first);
}

TEST_F(SegmentReuse, HappensWithWorkersOfTheSameUser) {
  OtherProcess worker(::geteuid(), [&](Channel parent) { return serve(parent, *listener_); });
  const std::uint32_t port = listener_->local_address().port();
  const ino_t first = connect_and_close(host_, port, worker.channel());
  EXPECT_EQ(connect_and_close(host_, port, worker.channel()), first);
  // Another one never saw it, and finds it zeroed as ever.
  OtherProcess server(::geteuid(), serve_on_own_port);
  const auto other_port = server.channel().hear();
  ASSERT_TRUE(other_port);
  const ino_t second = connect_and_close(host_, *other_port, server.channel());
  EXPECT_EQ(connect_and_close(host_, *other_port, server.channel()), second);
}

TEST_F(SegmentReuse, HappensWithWorkersThatHaveBecomeAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  const std::uint32_t port = listener_->local_address().port();
  // The kernel names the user that called listen(2), which is ours.
  OtherProcess worker(kAlice, [&](Channel parent) { return serve(parent, *listener_); });
  connect_and_close(host_, port, worker.channel());
  EXPECT_EQ(segment_cache().idle(), 0u) << "another user has seen what was for ours";
  const ino_t kept = connect_and_close(host_, port, worker.channel());
  EXPECT_EQ(connect_and_close(host_, port, worker.channel()), kept);
}

/// Without /proc the process cannot look up any more whether 65534 is its own user only.
TEST_F(SegmentReuse, HappensWithAServerThatHasGoneIntoAnEmptyDirectoryAsNobody) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  OtherProcess server(::geteuid(), [](Channel parent) {
    SoftHost host;
    auto listener = host.listener();
    std::string empty = "/tmp/ringsock-empty-XXXXXX";
    if (::mkdtemp(empty.data()) == nullptr || ::chdir(empty.c_str()) != 0 || ::rmdir(empty.c_str()) != 0) return 1;
    if (::chroot(".") != 0 || ::setresuid(kAlice, kAlice, kAlice) != 0) return 1;
    parent.tell(listener->local_address().port());
    for (;;) {
      End one = take_request(host, *listener);
      if (!one.id || !one.id->accept({}) || next(*one.id).type != CmEventType::established) return 2;
      if (next(*one.id).type != CmEventType::disconnected) return 3;
      one.close();
      parent.tell(1);
    }
  });
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  const auto connect_once = [&] {
    End client = start_connect(host_, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port)));
    EXPECT_EQ(next(*client.id).type, CmEventType::established);
    const ino_t inode = inode_of(client.qp);
    client.close();
    EXPECT_TRUE(server.channel().hear());
    return inode;
  };
  connect_once();
  const ino_t kept = connect_once();
  EXPECT_EQ(connect_once(), kept);
}

TEST_F(SegmentReuse, AnotherWorkerOfThatUserTakesWhatItNeverSaw) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  const std::uint32_t port = listener_->local_address().port();
  OtherProcess first(kAlice, [&](Channel parent) { return parent.hear() ? serve(parent, *listener_) : 1; });
  OtherProcess second(kAlice, [&](Channel parent) { return parent.hear() ? serve(parent, *listener_) : 1; });
  first.channel().tell(1);
  connect_and_close(host_, port, first.channel());
  const ino_t kept = connect_and_close(host_, port, first.channel());
  first.signal(SIGKILL);
  first.wait();
  second.channel().tell(1);
  EXPECT_EQ(connect_and_close(host_, port, second.channel()), kept);
}

TEST_F(SegmentReuse, NotWithAWorkerOfAThirdUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  const std::uint32_t port = listener_->local_address().port();
  OtherProcess alice(kAlice, [&](Channel parent) { return parent.hear() ? serve(parent, *listener_) : 1; });
  OtherProcess bob(kBob, [&](Channel parent) { return parent.hear() ? serve(parent, *listener_) : 1; });
  alice.channel().tell(1);
  connect_and_close(host_, port, alice.channel());
  const ino_t kept = connect_and_close(host_, port, alice.channel());
  alice.signal(SIGKILL);
  alice.wait();
  bob.channel().tell(1);
  End refused = start_connect(host_, listener_->local_address());
  EXPECT_EQ(next(*refused.id).type, CmEventType::rejected) << "Alice has had this memory";
  refused.close();
  EXPECT_NE(connect_and_close(host_, port, bob.channel()), kept);
}

TEST_F(SegmentReuse, NotForTheNextProcessOfAnotherUserOnThePort) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  auto first_server = std::make_unique<OtherProcess>(kAlice, serve_on_own_port);
  const auto port = first_server->channel().hear();
  ASSERT_TRUE(port);
  const ino_t first = connect_and_close(host_, *port, first_server->channel());
  first_server.reset();
  EXPECT_EQ(segment_cache().idle(), 1u);
  // It listens only now: a fork would have emptied the cache.
  auto listener = host_.id();
  ASSERT_TRUE(listener->bind(SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port))));
  ASSERT_TRUE(listener->listen(8));
  Connection second = connect(host_, *listener);
  EXPECT_NE(inode_of(second.client.qp), first);
}

TEST_F(SegmentReuse, AListenerThatGaveUpWaitingForTheRequestIsAskedAgain) {
  constexpr Nanos kHalfOpenTime{1'000'000};
  auto listener =
      host_.id(PortSpace::tcp, {.connect = {}, .accept = {.half_open = 64, .half_open_time = kHalfOpenTime}});
  ASSERT_TRUE(listener->bind(kLoopback));
  ASSERT_TRUE(listener->listen(8));
  End client{host_.id(), {}};
  resolve(*client.id, listener->local_address());
  client.qp = host_.queue_pair(*client.id);
  ASSERT_FALSE(listener->next_event());
  ASSERT_TRUE(listener->next_deadline()) << "the queue pair knows its peer, so the listener knows of it";
  while (listener->next_deadline()) {
    pollfd nothing{-1, 0, 0};
    ::poll(&nothing, 1, 1);
    ASSERT_FALSE(listener->next_event());
  }
  ASSERT_TRUE(client.id->connect({}));
  End server = take_request(host_, *listener);
  ASSERT_TRUE(server.id);
  ASSERT_TRUE(server.id->accept({}));
  EXPECT_EQ(next(*client.id).type, CmEventType::established);
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): End owns it

TEST_F(SegmentReuse, AnotherUserOnThePortBeforeTheRequestIsARefusal) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  auto first_server = std::make_unique<OtherProcess>(kAlice, serve_on_own_port);
  const auto port = first_server->channel().hear();
  ASSERT_TRUE(port);
  const SocketAddress address = SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port));
  End client{host_.id(), {}};
  resolve(*client.id, address);
  client.qp = host_.queue_pair(*client.id);
  first_server.reset();
  auto listener = host_.id();
  ASSERT_TRUE(listener->bind(address));
  ASSERT_TRUE(listener->listen(8));
  ASSERT_TRUE(client.id->connect({}));
  EXPECT_EQ(next(*client.id).type, CmEventType::rejected);
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): End owns it

}  // namespace
}  // namespace ringsock::tests
