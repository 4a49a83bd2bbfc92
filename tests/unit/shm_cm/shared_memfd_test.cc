// Connections that stay open, whose segments share a memfd: who gets it, and what becomes of the segments.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ranges>
#include <string>
#include <vector>

#include "core/device/shm/memory/segment_cache.h"
#include "tests/unit/shm_cm/attacker.h"
#include "tests/unit/shm_cm/memory_inode.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

using soft::LinkPacket;
using soft::PeerProcess;
using soft::segment_cache;

/// A process that may keep no segment, as if all its places were taken.
class SharedMemfd : public ::testing::Test {
 protected:
  SharedMemfd() {
    segment_cache().clear();
    // Another story may have had a segment refused just now.
    const Nanos later = monotonic_now() + std::chrono::minutes(1);
    segment_cache().learn_accepters({::getpid(), ::geteuid()}, PeerProcess{soft::kAnyProcess, ::geteuid()}, later);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{63, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~SharedMemfd() override {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    segment_cache().clear();
  }
  static void know_as_opening(pid_t listener, bool opens = true) {
    segment_cache().learn_opening({listener, ::geteuid()}, {soft::kAnyProcess, ::geteuid()}, opens);
  }

  rlimit before_{};
  SoftHost host_;
  std::unique_ptr<ConnectionId> listener_ = host_.listener();
};

void send_text(End& from, const End& to, std::string text) {
  ibv_sge piece{reinterpret_cast<std::uint64_t>(text.data()), static_cast<std::uint32_t>(text.size()), 0};
  ibv_send_wr send{}, *bad = nullptr;
  send.opcode = IBV_WR_RDMA_WRITE;
  send.send_flags = IBV_SEND_INLINE;
  send.sg_list = &piece;
  send.num_sge = 1;
  send.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(to.qp.receive_memory.data());
  send.wr.rdma.rkey = to.qp.receive_mr->rkey;
  ASSERT_EQ(ibv_post_send(from.qp.qp.get(), &send, &bad), 0);
}

std::string text_in(const End& end, std::size_t bytes) {
  return {reinterpret_cast<const char*>(end.qp.receive_memory.data()), bytes};
}

TEST_F(SharedMemfd, OnceAnAccepterHasOpenedOneTheNextConnectionsShareTheirs) {
  know_as_opening(::getpid(), false);
  const Connection first = connect(host_, *listener_);
  EXPECT_TRUE(segment_cache().do_open({::getpid(), ::geteuid()}));
  const Connection second = connect(host_, *listener_);
  const Connection third = connect(host_, *listener_);
  EXPECT_NE(inode_of(first.client.qp), inode_of(second.client.qp));
  EXPECT_EQ(inode_of(second.client.qp), inode_of(third.client.qp));
  EXPECT_EQ(inode_of(second.server.qp), inode_of(third.server.qp));
}

TEST_F(SharedMemfd, EachConnectionHasItsOwnBytes) {
  know_as_opening(::getpid());
  std::vector<Connection> all;
  all.reserve(5);
  for (int i = 0; i < 5; ++i) all.push_back(connect(host_, *listener_));
  for (int i = 0; i < 5; ++i) {
    auto& one = all[static_cast<std::size_t>(i)];
    send_text(one.client, one.server, "to server " + std::to_string(i));
    send_text(one.server, one.client, "to client " + std::to_string(i));
  }
  all.erase(all.begin() + 2);  // the others stay as they are
  for (const int i : {0, 1, 3, 4}) {
    const auto& one = all[static_cast<std::size_t>(i < 2 ? i : i - 1)];
    EXPECT_EQ(text_in(one.server, 11), "to server " + std::to_string(i));
    EXPECT_EQ(text_in(one.client, 11), "to client " + std::to_string(i));
  }
  const Connection next = connect(host_, *listener_);
  const auto is_zero = [](std::byte value) { return value == std::byte{0}; };
  EXPECT_TRUE(std::ranges::all_of(next.server.qp.receive_memory, is_zero));
  EXPECT_TRUE(std::ranges::all_of(next.client.qp.receive_memory, is_zero));
}

TEST_F(SharedMemfd, AForkedProcessHasItsConnectionsAndNoneThatComeLater) {
  know_as_opening(::getpid());
  Connection before = connect(host_, *listener_);
  OtherProcess child(::geteuid(), [&](Channel parent) {
    [[maybe_unused]] const auto go_on = parent.hear();
    const bool is_there = text_in(before.server, 5) == "hello";
    before.client.id->abandon(false);
    before.server.id->abandon(false);
    before.client.close();
    before.server.close();
    return is_there ? 0 : 1;
  });
  const Connection after = connect(host_, *listener_);
  EXPECT_NE(inode_of(before.client.qp), inode_of(after.client.qp));
  EXPECT_NE(inode_of(before.server.qp), inode_of(after.server.qp));
  send_text(before.client, before.server, "hello");
  child.channel().tell(0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(text_in(before.server, 5), "hello") << "the child has closed its copies only";
}

/// The name of the memfd would lead to the memory of other connections.
TEST_F(SharedMemfd, AnAccepterThatAsksForTheMemoryDoesNotGetIt) {
  OtherProcess server(::geteuid(), [](Channel parent) {
    Attacker self;
    parent.tell(self.listen());
    if (!self.accept() || self.hear() != static_cast<unsigned>(LinkPacket::request)) return 1;
    if (!self.send(LinkPacket::want_memory, {}, -1)) return 2;
    // The client has nothing to say to that, and gives up.
    return self.hear() == 0 ? 0 : 3;
  });
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  know_as_opening(server.pid());
  soft::SoftIdLimits limits;
  limits.connect.total = std::chrono::milliseconds(200);
  End client = start_connect(host_, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port)), {}, limits);
  EXPECT_EQ(next(*client.id).type, CmEventType::unreachable);
  client.close();
  EXPECT_EQ(server.wait(), 0);
  EXPECT_FALSE(segment_cache().do_open({server.pid(), ::geteuid()}));
}

TEST_F(SharedMemfd, AnAccepterThatRefusesAPartGetsASegmentOfItsOwnNext) {
  OtherProcess server(::geteuid(), [](Channel parent) {
    Attacker self;
    parent.tell(self.listen());
    if (!self.accept() || self.hear() != static_cast<unsigned>(LinkPacket::request)) return 1;
    self.hang_up();
    parent.tell(0);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  know_as_opening(server.pid());
  End client = start_connect(host_, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port)));
  EXPECT_EQ(next(*client.id).type, CmEventType::rejected);
  EXPECT_FALSE(segment_cache().do_open({server.pid(), ::geteuid()}));
}

/// Sends a request by hand, as another process of user `uid`. Returns whether it was refused.
bool is_refused(ConnectionId& listener, SoftHost& host, uid_t uid, std::uint32_t part, std::uint32_t parts) {
  const std::uint16_t port = listener.local_address().port();
  OtherProcess client(uid, [=](Channel) {
    Attacker self;
    // A whole number of parts, each as large as a connection needs.
    if (!self.connect(port) || !self.make_memory()) return 90;
    const std::uint64_t one = self.offer().inbox.bytes + self.offer().spare.bytes;
    if (!self.make_memory(3 * one)) return 91;
    self.offer().flags |= part << soft::kOfferPartShift | (parts - 1) << soft::kOfferPartsShift;
    if (!self.request()) return 92;
    const unsigned answer = self.hear();
    return answer == 0 ? 0 : answer == static_cast<unsigned>(LinkPacket::reply) ? 1 : 93;
  });
  int status = -1;
  End server;
  const Nanos give_up = monotonic_now() + std::chrono::seconds(10);
  while (!client.has_ended(status) && monotonic_now() < give_up) {
    auto event = listener.next_event();
    if (!event) continue;
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = host.cq.get();
    attr.cap = {8, 8, 1, 1, 64};
    attr.qp_type = IBV_QPT_RC;
    server.id = std::move(event->request);
    auto made = server.id->create_qp(*host.pd, attr, 4096);
    if (made) server.qp = std::move(*made);
    if (!made || !server.id->accept({})) server.id.reset();
  }
  EXPECT_TRUE(status == 0 || status == 1) << status;
  return status == 0;
}

TEST_F(SharedMemfd, PartsOfOurOwnUserAreTakenIfTheyCanBe) {
  EXPECT_FALSE(is_refused(*listener_, host_, ::geteuid(), 3, 4));
  EXPECT_TRUE(is_refused(*listener_, host_, ::geteuid(), 4, 4)) << "no such part";
  EXPECT_TRUE(is_refused(*listener_, host_, ::geteuid(), 0, 16)) << "a part has no room for the inbox";
}

TEST_F(SharedMemfd, PartsOfAnotherUserAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  EXPECT_TRUE(is_refused(*listener_, host_, kBob, 0, 4));
}

}  // namespace
}  // namespace ringsock::tests
