// A connection whose peer notes messages in a map of ready connections, and peers that lie about maps.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/device/shm/memory/ready_maps.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint32_t kPlace = 4711;

/// Bob lists his end; Alice sends.
class RcListing : public ::testing::Test {
 protected:
  RcListing() { pair_.bob.post_receives(64); }
  Listing list() {
    ibv_req_notify_cq(pair_.bob.cq.get(), 0);
    return pair_.bob.device->rc().list_at(*pair_.bob.qp, map_, kPlace);
  }
  void send() { ASSERT_EQ(pair_.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "news", &pair_.bob, 0), 0); }
  std::size_t received() { return End::poll_once(*pair_.bob.cq).size(); }
  std::vector<std::uint32_t> noted() {
    std::vector<std::uint32_t> places;
    map_->bits().take(ReadyBits::kPlaces, [&](std::uint32_t place) { places.push_back(place); });
    return places;
  }
  bool is_rung() { return pair_.bob.channel_readable(); }

  RcPair pair_;
  std::shared_ptr<ReadyMap> map_ = must(pair_.bob.device->rc().make_ready_map());
};

using Places = std::vector<std::uint32_t>;

TEST_F(RcListing, MessagesAreNotedAndRingForASleeperOnly) {
  const Listing listing = list();
  ASSERT_TRUE(listing.lasts());
  for (int i = 0; i < 3; ++i) send();
  EXPECT_EQ(noted(), Places{kPlace});
  EXPECT_EQ(received(), 3U);
  EXPECT_FALSE(is_rung());

  map_->bits().will_sleep();
  send();
  EXPECT_TRUE(is_rung());
  EXPECT_EQ(noted(), Places{kPlace});
  EXPECT_TRUE(listing.lasts()) << "a listing outlasts the doorbell";
}

TEST_F(RcListing, AMessageBeforeTheListingRings) {
  ibv_req_notify_cq(pair_.bob.cq.get(), 0);
  send();
  EXPECT_FALSE(pair_.bob.device->rc().list_at(*pair_.bob.qp, map_, kPlace).lasts());
  EXPECT_TRUE(is_rung());
  EXPECT_EQ(noted(), Places{});
}

TEST_F(RcListing, ArmingEndsAListing) {
  const Listing listing = list();
  ibv_req_notify_cq(pair_.bob.cq.get(), 0);
  EXPECT_FALSE(listing.lasts());
  send();
  EXPECT_TRUE(is_rung());
  EXPECT_EQ(noted(), Places{});
}

TEST_F(RcListing, WithoutAListingNothingIsNotedOrRung) {
  const Listing listing = list();
  pair_.bob.device->rc().unlist(*pair_.bob.qp);
  EXPECT_FALSE(listing.lasts());
  send();
  EXPECT_FALSE(is_rung());
  EXPECT_EQ(noted(), Places{});
  EXPECT_EQ(received(), 1U);
}

TEST_F(RcListing, AMapThatTheProgramHasClosedIsDoneWithout) {
  ::close(static_cast<const OwnReadyMap&>(*map_).memfd());
  list();
  send();
  EXPECT_TRUE(is_rung()) << "the peer cannot open it, and rings";
}

TEST_F(RcListing, AConnectionMovesToAnotherMap) {
  list();
  send();
  EXPECT_EQ(noted(), Places{kPlace});
  map_ = must(pair_.bob.device->rc().make_ready_map());
  list();
  send();
  EXPECT_EQ(noted(), Places{kPlace});
}

TEST_F(RcListing, AMessageToAnEarlierConnectionAtThePlaceTakesNoRing) {
  RcPair earlier;
  earlier.bob.post_receives(64);
  ibv_req_notify_cq(earlier.bob.cq.get(), 0);
  ASSERT_TRUE(earlier.bob.device->rc().list_at(*earlier.bob.qp, map_, kPlace).lasts());
  list();
  map_->bits().will_sleep();
  // Bob has closed the earlier one, so that its doorbell wakes nobody, but Alice has not noticed that yet.
  ASSERT_EQ(earlier.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "late", &earlier.bob, 0), 0);
  send();
  EXPECT_TRUE(is_rung());
}

TEST_F(RcListing, AConnectionRingsForASleepWithAnotherMapToo) {
  list();
  map_->bits().will_sleep();
  send();
  EXPECT_TRUE(is_rung());
  EXPECT_FALSE(pair_.bob.device->get_cq_event(*pair_.bob.channel)) << "it takes the ring";
  pair_.bob.device->rc().unlist(*pair_.bob.qp);
  map_ = must(pair_.bob.device->rc().make_ready_map());
  list();
  map_->bits().will_sleep();
  EXPECT_FALSE(is_rung());
  send();
  EXPECT_TRUE(is_rung());
}

TEST_F(RcListing, ASleeperIsWokenAlthoughItsProcessWasAboutToEnd) {
  list();
  pair_.bob.device->rc().arm_for_good(*pair_.bob.qp);  // and its exec(3) failed
  send();
  EXPECT_TRUE(is_rung());
  EXPECT_EQ(noted(), Places{});
}

/// Alice's side by hand: she claims to have listed her end in a map.
class HostileListing : public ::testing::Test {
 protected:
  HostileListing() {
    bob_.create(nullptr);
    RcWiring& bobs = wiring_of(*bob_.qp);
    const QueuePairOffer offer = bobs.offer();
    segment_ = must(map_peer_segment(UniqueFd(::dup(bobs.offer_memfd()->get())), offer.memory, UINT64_MAX));
    outbox_ = InboxView(*segment_, offer.spare);
    auto [a, b] = socket_pair();
    socket_ = std::move(a);
    link_ = std::make_shared<Link>(std::move(b));
    QueuePairOffer reply{};
    reply.inbox = offer.spare;
    reply.qp_num = 99;
    // A process of her own user, whose descriptors can be opened.
    must(bobs.attach(reply, nullptr, link_, {{::getpid(), ::getuid()}, 0}, 7));
    outbox_.consumer().receives_posted.store(64);
  }
  void claim(const UniqueFd& map, std::uint32_t descriptor) {
    struct stat status {};
    ASSERT_EQ(::fstat(map.get(), &status), 0);
    outbox_.doorbell().map_descriptor.store(descriptor);
    outbox_.doorbell().map_device.store(status.st_dev);
    outbox_.doorbell().map_inode.store(status.st_ino);
    outbox_.doorbell().armed.store(1U << 31 | kPlace);
  }
  void bob_sends() { ASSERT_EQ(bob_.post_text(IBV_WR_SEND, "", nullptr), 0); }
  /// The types of the packets that Bob has sent, in order.
  std::vector<LinkPacket> packets() {
    std::vector<LinkPacket> types;
    LinkPacket type{};
    while (::recv(socket_.get(), &type, 1, MSG_DONTWAIT) == 1) types.push_back(type);
    return types;
  }
  /// Returns whether Bob has rung by the link since packets() was called last. He may have asked for a map again
  /// before.
  bool is_rung() {
    const std::vector<LinkPacket> sent = packets();
    return !sent.empty() && sent.back() == LinkPacket::wake;
  }
  void pass(int descriptor) {
    LinkPacket type = LinkPacket::ready_map;
    iovec bytes{&type, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    ASSERT_EQ(::sendmsg(socket_.get(), &message, 0), 1);
    link_->drain();
  }

  End bob_;
  std::shared_ptr<MappedSegment> segment_;
  InboxView outbox_;
  UniqueFd socket_;
  std::shared_ptr<Link> link_;
};

UniqueFd memory(std::size_t bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) std::abort();
  return fd;
}
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kMapBytes = (sizeof(ReadyBits) + 4095) / 4096 * 4096;
using Packets = std::vector<LinkPacket>;

TEST(ReadyMapsOfPeers, OneConnectionAtATimeAsksForAMapAndTheOthersWaitForTheAnswer) {
  PeerReadyMaps maps;
  MemoryName one{}, other{};
  one.inode = 1;
  other.inode = 2;
  constexpr Nanos kBegin{1'000'000'000}, kAnswerTime{20'000'000};
  EXPECT_TRUE(maps.may_try(one, kBegin));
  EXPECT_FALSE(maps.may_try(one, kBegin + kAnswerTime - Nanos(1)));
  EXPECT_TRUE(maps.may_try(other, kBegin));
  EXPECT_TRUE(maps.may_try(one, kBegin + kAnswerTime));
  EXPECT_FALSE(maps.may_try(one, kBegin + kAnswerTime));
}

TEST_F(HostileListing, AProcessThatEndsIsRungForByEachMessage) {
  outbox_.doorbell().armed.store(kArmedForGood);
  for (int i = 0; i < 3; ++i) {
    bob_sends();
    EXPECT_EQ(packets(), Packets{LinkPacket::wake}) << i;
  }
  outbox_.doorbell().armed.store(kArmedForAny);  // its exec(3) has failed, and it sleeps
  bob_sends();
  EXPECT_EQ(packets(), Packets{LinkPacket::wake});
  bob_sends();
  EXPECT_EQ(packets(), Packets{});
}

TEST_F(HostileListing, MemoryThatCouldShrinkIsNoMap) {
  const UniqueFd map = memory(kMapBytes, F_SEAL_GROW);
  claim(map, static_cast<std::uint32_t>(map.get()));
  bob_sends();
  EXPECT_EQ(packets(), (Packets{LinkPacket::want_ready_map, LinkPacket::wake}));
  pass(map.get());
  claim(map, static_cast<std::uint32_t>(map.get()));
  bob_sends();
  EXPECT_TRUE(is_rung());
}

TEST_F(HostileListing, MemoryOfAnotherSizeIsNoMap) {
  for (const std::size_t bytes : {std::size_t{4096}, kMapBytes + 4096}) {
    const UniqueFd map = memory(bytes, kAllSeals);
    claim(map, static_cast<std::uint32_t>(map.get()));
    bob_sends();
    EXPECT_EQ(packets(), (Packets{LinkPacket::want_ready_map, LinkPacket::wake}));
    pass(map.get());
    claim(map, static_cast<std::uint32_t>(map.get()));
    bob_sends();
    EXPECT_TRUE(is_rung());
  }
}

TEST_F(HostileListing, ADescriptorOfAnotherFileIsNotOpened) {
  const UniqueFd map = memory(kMapBytes, kAllSeals);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd reader(pipe[0]);
  const UniqueFd writer(pipe[1]);
  claim(map, static_cast<std::uint32_t>(reader.get()));
  bob_sends();
  EXPECT_EQ(packets(), (Packets{LinkPacket::want_ready_map, LinkPacket::wake}));
  pass(reader.get());
  EXPECT_FALSE(link_->peer_gone());
  claim(map, static_cast<std::uint32_t>(reader.get()));
  bob_sends();
  EXPECT_TRUE(is_rung());
}

TEST_F(HostileListing, AMapThatIsPassedServesFromThenOn) {
  const UniqueFd map = memory(kMapBytes, kAllSeals);
  constexpr std::uint32_t kNoDescriptor = 1'000'000;
  claim(map, kNoDescriptor);
  bob_sends();
  EXPECT_EQ(packets(), (Packets{LinkPacket::want_ready_map, LinkPacket::wake}));
  pass(map.get());
  claim(map, kNoDescriptor);
  bob_sends();
  EXPECT_EQ(packets(), Packets{});
}

TEST_F(HostileListing, NewMapsForEachMessageAreNotFollowed) {
  std::vector<UniqueFd> maps;
  int asked = 0;
  for (int i = 0; i < 50; ++i) {
    maps.push_back(memory(kMapBytes, F_SEAL_GROW));
    claim(maps.back(), static_cast<std::uint32_t>(maps.back().get()));
    bob_sends();
    for (const LinkPacket packet : packets()) asked += packet == LinkPacket::want_ready_map ? 1 : 0;
  }
  EXPECT_EQ(asked, 4);
}

TEST_F(HostileListing, WhoAsksForAMapWithoutEndGetsFewAnswers) {
  const std::shared_ptr<ReadyMap> map = must(bob_.device->rc().make_ready_map());
  ibv_req_notify_cq(bob_.cq.get(), 0);
  ASSERT_TRUE(bob_.device->rc().list_at(*bob_.qp, map, kPlace).lasts());
  const LinkPacket question = LinkPacket::want_ready_map;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(::send(socket_.get(), &question, 1, 0), 1);
    link_->drain();
  }
  EXPECT_EQ(packets().size(), 4U);
}

}  // namespace
}  // namespace ringsock::soft::testing
