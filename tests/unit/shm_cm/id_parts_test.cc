// The parts of a connection id, each alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/device/shm/cm/expected_accepter.h"
#include "core/device/shm/cm/id_link.h"
#include "core/device/shm/cm/listener_search.h"
#include "core/device/shm/cm/peer_segment.h"
#include "core/device/shm/memory/segment_cache.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

using namespace soft;

constexpr uid_t kStranger = 424'242;
const PeerIdentity kOurselves{::getpid(), ::getuid(), true};

/// The id's end of a link; the test plays the peer.
class IdLinkTest : public ::testing::Test {
 protected:
  IdLinkTest() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    link_.open(UniqueFd(fds[0]), kOurselves);
    peer_ = std::make_unique<Link>(UniqueFd(fds[1]));
  }
  IdLink link_;
  std::unique_ptr<Link> peer_;
};

TEST_F(IdLinkTest, PacketsComeInTheirOrder) {
  ASSERT_TRUE(peer_->send(LinkPacket::reply, {}));
  ASSERT_TRUE(peer_->send(LinkPacket::disconnect, {}));
  peer_.reset();
  link_->drain();
  EXPECT_FALSE(link_.is_finished());
  EXPECT_EQ(link_.pop()->type, LinkPacket::reply);
  EXPECT_EQ(link_.pop()->type, LinkPacket::disconnect);
  EXPECT_FALSE(link_.pop());
  EXPECT_TRUE(link_.is_finished());
}

TEST_F(IdLinkTest, ADroppedLinkIsHungUpWhereAQueuePairHasItAndKeepsItsNumber) {
  const auto queue_pairs = link_.shared();
  link_.drop(nullptr);
  EXPECT_FALSE(link_);
  EXPECT_EQ(link_.event_fd(), -1);
  peer_->drain();
  EXPECT_TRUE(peer_->peer_gone());

  const int number = ::fcntl(queue_pairs->fd(), F_DUPFD_CLOEXEC, 100);
  ASSERT_TRUE(link_.move_to(number));
  EXPECT_EQ(queue_pairs->fd(), number);
}

TEST_F(IdLinkTest, TheSegmentOfAClientThatDiedIsNotKept) {
  const auto segment = make_segment(kPageBytes)->mapping;
  peer_.reset();
  link_.drop(segment.get());
  EXPECT_TRUE(segment->has_no_peer());
}

TEST_F(IdLinkTest, ALinkThatAChannelDrainsIsNotWatched) {
  EXPECT_EQ(link_.event_fd(), link_->fd());
  const SoftHost host(true);
  ibv_qp queue_pair{};
  queue_pair.recv_cq = host.cq.get();
  link_.leave_to_channel_of(queue_pair);
  EXPECT_EQ(link_.event_fd(), -1);
  EXPECT_FALSE(link_.adopt(0));
}

/// A memfd of the peer, and its offer.
struct Offered {
  explicit Offered(std::uint64_t bytes) : segment(*make_segment(bytes)) {
    struct stat status {};
    ::fstat(segment.memfd.get(), &status);
    offer.memory.device = status.st_dev;
    offer.memory.inode = status.st_ino;
  }
  UniqueFd pass() { return UniqueFd(::dup(segment.memfd.get())); }
  OwnSegment segment;
  QueuePairOffer offer{};
};

TEST(PeerSegment, IsMappedWhenItIsNeeded) {
  Offered offered(kPageBytes);
  PeerSegment segment({}, offered.pass());
  EXPECT_FALSE(segment.mapping());
  ASSERT_TRUE(segment.take(kOurselves, offered.offer, {kPageBytes}));
  EXPECT_EQ(segment.mapping()->bytes(), kPageBytes);
  EXPECT_TRUE(segment.release());
  EXPECT_FALSE(segment.mapping());
}

TEST(PeerSegment, AnotherFileIsNotMapped) {
  Offered offered(kPageBytes);
  ++offered.offer.memory.inode;
  PeerSegment segment;
  EXPECT_FALSE(segment.map(offered.pass(), kOurselves, offered.offer, {kPageBytes}, std::nullopt));
}

TEST(PeerSegment, AStrangerMayOfferLittleMoreThanIsNeeded) {
  const PeerIdentity stranger{1, kStranger, false};
  Offered offered(kMaxExtraBytes + 2 * kPageBytes);
  PeerSegment segment;
  EXPECT_FALSE(segment.map(offered.pass(), stranger, offered.offer, {kPageBytes}, std::nullopt));
  EXPECT_TRUE(segment.map(offered.pass(), stranger, offered.offer, {2 * kPageBytes}, std::nullopt));
  EXPECT_TRUE(PeerSegment().map(offered.pass(), kOurselves, offered.offer, {kPageBytes}, std::nullopt));
}

TEST(PeerSegment, TheBudgetOfAStrangerIsGivenBack) {
  const PeerIdentity stranger{1, kStranger, false};
  Offered offered(kMaxExtraBytes + kPageBytes);
  const auto map_many = [&] {
    std::vector<std::unique_ptr<PeerSegment>> segments;
    for (;;) {
      segments.push_back(std::make_unique<PeerSegment>());
      if (!segments.back()->map(offered.pass(), stranger, offered.offer, {kPageBytes}, std::nullopt))
        return segments.size() - 1;
    }
  };
  EXPECT_EQ(map_many(), kMaxExtraBytesOfUser / kMaxExtraBytes);
  EXPECT_EQ(map_many(), kMaxExtraBytesOfUser / kMaxExtraBytes);
}

/// A listener that nobody has connected to, so that nothing is known of its accepters.
class ExpectedAccepterTest : public ::testing::Test {
 protected:
  ExpectedAccepterTest() { segment_cache().clear(); }
  [[nodiscard]] static ucred sender(uid_t uid) { return {::getpid(), uid, 0}; }
  ExpectedAccepter expected_;
};

TEST_F(ExpectedAccepterTest, WithoutAnExpectationEverybodyMayAnswer) {
  EXPECT_FALSE(expected_.processes());
  EXPECT_FALSE(expected_.is_other(kOurselves));
  EXPECT_TRUE(expected_.meets(kOurselves, sender(kStranger), false));
}

TEST_F(ExpectedAccepterTest, TheListenerItselfMayAnswer) {
  expected_.expect(kOurselves);
  EXPECT_TRUE(expected_.processes());
  EXPECT_FALSE(expected_.is_other(kOurselves));
  EXPECT_TRUE(expected_.meets(kOurselves, sender(::getuid()), true));
}

TEST_F(ExpectedAccepterTest, AnotherListenerIsNoticed) {
  expected_.expect(kOurselves);
  EXPECT_TRUE(expected_.is_other({::getppid(), ::getuid(), true}));
}

TEST_F(ExpectedAccepterTest, AWorkerOfAnotherUserIsLearntForTheNextConnection) {
  const PeerIdentity listener{::getppid(), ::getuid(), true};
  expected_.expect(listener);
  EXPECT_FALSE(expected_.meets(listener, sender(kStranger), false));

  ExpectedAccepter next;
  next.expect(listener);
  EXPECT_EQ(next.processes(), (PeerProcess{kAnyProcess, kStranger}));
  EXPECT_TRUE(next.meets(listener, sender(kStranger), false));
  next.refused();
  ExpectedAccepter after_refusal;
  after_refusal.expect(listener);
  EXPECT_FALSE(after_refusal.processes());
}

/// A search from a port of its own.
class ListenerSearchTest : public ::testing::Test {
 protected:
  void aim(ConnectionId& listener) { aim(listener.local_address()); }
  void aim(const SocketAddress& destination) {
    ASSERT_TRUE(port_.bind_ephemeral(PortSpace::tcp, kLoopback));
    search_.aim(destination, port_);
    search_.start();
  }
  SoftHost host_;
  SilentPorts silent_ports_;
  PortReservation port_;
  ListenerSearch search_{silent_ports_, PortSpace::tcp, {}};
};

TEST_F(ListenerSearchTest, WhatWasJoinedEarlyIsTakenOnce) {
  const auto listener = host_.listener();
  aim(*listener);
  const auto* const early = search_.join_early();
  ASSERT_NE(early, nullptr);
  EXPECT_EQ(early->peer.pid, ::getpid());
  EXPECT_EQ(search_.join_early(), early);
  const auto found = search_.take();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_early);
}

TEST_F(ListenerSearchTest, ASilentListenerIsRememberedByThoseWithAnotherWay) {
  const SocketAddress destination = SocketAddress::v4(INADDR_LOOPBACK, 9);
  aim(destination);
  search_.end(ETIMEDOUT);
  EXPECT_FALSE(silent_ports_.has({PortSpace::tcp, destination, false}));

  search_.have_other_way(std::chrono::seconds(1));
  search_.end(ECONNREFUSED);
  EXPECT_FALSE(silent_ports_.has({PortSpace::tcp, destination, false}));
  search_.end(ETIMEDOUT);
  EXPECT_TRUE(silent_ports_.has({PortSpace::tcp, destination, false}));
}

}  // namespace
}  // namespace ringsock::tests
