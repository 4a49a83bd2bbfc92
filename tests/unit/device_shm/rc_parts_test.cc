// The parts of an RC queue pair, each alone.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "core/device/shm/memory/ready_maps.h"
#include "core/device/shm/memory/space_mark.h"
#include "core/device/shm/queue/arming.h"
#include "core/device/shm/queue/connection_memory.h"
#include "core/device/shm/queue/fences.h"
#include "core/device/shm/queue/outbox.h"
#include "core/device/shm/queue/own_regions.h"
#include "core/device/shm/queue/peer_regions.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/device/shm/queue/rc_attributes.h"
#include "core/device/shm/queue/receive_end.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint32_t kEntries = 16;
constexpr std::uint32_t kPayloadBytes = 4096;
constexpr std::uint64_t kArenaBytes = 8192;

/// An inbox of which a test plays the other side.
class RcParts : public ::testing::Test {
 protected:
  RcParts() {
    const InboxLayout layout = plan_inbox(0, kEntries, kPayloadBytes, kArenaBytes);
    segment_ = must(make_segment(layout.bytes));
    inbox_ = InboxView(*segment_.mapping, layout);
    auto [ours, theirs] = socket_pair();
    link_ = std::make_unique<Link>(std::move(ours));
    theirs_ = std::move(theirs);
  }
  [[nodiscard]] bool is_rung() {
    pollfd entry{theirs_.get(), POLLIN, 0};
    char packet[8];
    return ::poll(&entry, 1, 0) == 1 && ::read(theirs_.get(), packet, sizeof packet) > 0;
  }

  OwnSegment segment_;
  InboxView inbox_;
  std::unique_ptr<Link> link_;
  UniqueFd theirs_;
};

// -- fences

TEST_F(RcParts, AConnectionBeginsWithFences) {
  Fences fences;
  fences.begin(inbox_.producer(), false);
  EXPECT_EQ(inbox_.producer().fences, 1U);
}

TEST_F(RcParts, FencesEndWhenThePeerWantsNoneAfterManyEntries) {
  Fences fences;
  fences.begin(inbox_.producer(), false);
  fences.follow(false, kManyEntriesAwake - 1);
  EXPECT_EQ(inbox_.producer().fences, 1U) << "a peer cannot ask for our barrier after every message";
  fences.follow(false, kManyEntriesAwake);
  EXPECT_EQ(inbox_.producer().fences, 0U);
  fences.follow(true, kManyEntriesAwake + 1);
  EXPECT_EQ(inbox_.producer().fences, 1U) << "its wish for them is followed at once";
}

TEST_F(RcParts, FencesStayWhereASideHasNoBarriers) {
  Fences fences;
  fences.begin(inbox_.producer(), true);
  fences.follow(false, kManyEntriesAwake);
  EXPECT_EQ(inbox_.producer().fences, 1U);
}

TEST_F(RcParts, AConsumerThatStaysAwakeWantsNoFences) {
  FenceWish wish(inbox_.doorbell());
  wish.begin();
  EXPECT_EQ(inbox_.doorbell().wants_fences, 1U);
  wish.note_consumed(kManyEntriesAwake - 1);
  EXPECT_EQ(inbox_.doorbell().wants_fences, 1U);
  wish.note_consumed(kManyEntriesAwake);
  EXPECT_EQ(inbox_.doorbell().wants_fences, 0U);
}

TEST_F(RcParts, AConsumerThatSleepsBeforeEachMessageWantsFences) {
  FenceWish wish(inbox_.doorbell());
  for (std::uint32_t index = 0; index < 3; ++index) wish.note_arming(index);
  EXPECT_EQ(inbox_.doorbell().wants_fences, 0U);
  wish.note_arming(3);
  EXPECT_EQ(inbox_.doorbell().wants_fences, 1U);
}

// -- attributes

TEST(RcAttributes, FollowsTheStateDiagram) {
  ibv_qp qp{};
  qp.state = IBV_QPS_RESET;
  RcAttributes attributes(qp);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_FALSE(attributes.check(attr, IBV_QP_STATE));
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_FALSE(attributes.check(attr, IBV_QP_STATE)) << "attributes are missing";
  EXPECT_TRUE(attributes.check(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attributes.set_state(IBV_QPS_INIT);
  EXPECT_EQ(qp.state, IBV_QPS_INIT);
  EXPECT_EQ(attributes.state_now(), IBV_QPS_INIT);
  attr.cur_qp_state = IBV_QPS_RTS;
  EXPECT_FALSE(attributes.check(attr, IBV_QP_CUR_STATE));
}

TEST(RcAttributes, TellsHowLongAMessageWaitsForAReceive) {
  ibv_qp qp{};
  RcAttributes attributes(qp);
  EXPECT_EQ(attributes.patience_for_receive(), std::nullopt);
  ibv_qp_attr attr{};
  attr.min_rnr_timer = 12;  // 0.64 ms
  attributes.store(attr, IBV_QP_MIN_RNR_TIMER);
  attributes.store_connection(17, 3);
  EXPECT_EQ(attributes.patience_for_receive(), Nanos(3 * 640'000));
  EXPECT_EQ(attributes.all().dest_qp_num, 17U);
  EXPECT_EQ(attributes.all().rnr_retry, 3);
}

// -- the segments

ibv_qp_init_attr few_receives() {
  ibv_qp_init_attr attr{};
  attr.cap.max_recv_wr = 8;
  return attr;
}

TEST(ConnectionMemory, ThePeersInboxHasRoomInOurSegment) {
  auto ours = must(ConnectionMemory::make(few_receives(), kArenaBytes, nullptr, std::nullopt));
  QueuePairOffer offer{};
  ours.describe(offer);
  EXPECT_EQ(offer.flags, kOfferHasMemfd);
  EXPECT_TRUE(ours.memfd());
  EXPECT_TRUE(ours.check_peers(offer.spare, nullptr));

  const InboxView peers = ours.take_peers(offer.spare, nullptr);
  EXPECT_EQ(peers.lines - ours.own_inbox().lines, static_cast<std::ptrdiff_t>(offer.spare.offset));
  EXPECT_FALSE(ours.memfd()) << "the peer has a copy";
}

TEST(ConnectionMemory, APeersInboxOverOursIsRefused) {
  auto ours = must(ConnectionMemory::make(few_receives(), kArenaBytes, nullptr, std::nullopt));
  QueuePairOffer offer{};
  ours.describe(offer);
  EXPECT_FALSE(ours.check_peers(offer.inbox, nullptr));
  InboxLayout overlapping = offer.spare;
  overlapping.offset -= kPageBytes;
  EXPECT_FALSE(ours.check_peers(overlapping, nullptr));
}

TEST(ConnectionMemory, AnInboxThatDoesNotFitIntoTheRoomGetsItsOwnSegment) {
  const InboxLayout layout = plan_inbox(0, kEntries, kPayloadBytes, 0);
  OwnSegment segment = must(make_segment(layout.bytes));
  const SpareRoom room{segment.mapping, layout};
  auto ours = must(ConnectionMemory::make(few_receives(), kArenaBytes, &room, std::nullopt));
  QueuePairOffer offer{};
  ours.describe(offer);
  EXPECT_EQ(offer.flags, kOfferHasMemfd);
  EXPECT_EQ(offer.spare.bytes, 0U);
}

TEST(ConnectionMemory, ASegmentIsNotKeptForAPeerThatHasDied) {
  const InboxLayout layout = plan_inbox(0, kEntries, kPayloadBytes, 0);
  auto peers = must(make_segment(layout.bytes)).mapping;
  auto ours = must(ConnectionMemory::make(few_receives(), 0, nullptr, std::nullopt));
  ours.take_peers(layout, peers);
  ours.forget_peers();
  EXPECT_TRUE(peers->has_no_peer());
}

// -- sending

/// The producer of the inbox; the test plays its owner.
class RcOutbox : public RcParts {
 protected:
  RcOutbox() {
    outbox_.attach(inbox_, false, {::getpid(), ::getuid()}, *link_);
    outbox_.fences().begin(inbox_.producer(), false);
  }
  Outbox outbox_;
};

TEST_F(RcOutbox, KnowsTheReceivesThatThePeerHasPosted) {
  EXPECT_FALSE(outbox_.has_receive());
  inbox_.consumer().receive_bytes = 100;
  inbox_.consumer().receives_posted = 1;
  EXPECT_TRUE(outbox_.has_receive());
  EXPECT_FALSE(outbox_.wants_ack(100));
  EXPECT_TRUE(outbox_.wants_ack(101));
  outbox_.use_receive();
  EXPECT_FALSE(outbox_.has_receive());
}

TEST_F(RcOutbox, MoreReceivesThanThereCanBeAreNone) {
  inbox_.consumer().receives_posted = kMaxQueueEntries + 1;
  EXPECT_FALSE(outbox_.has_receive());
}

TEST_F(RcOutbox, StopsWhenTheRingIsFull) {
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(outbox_.has_entry());
    outbox_.put(EntryType::write_imm, kEntryHasImm, i, 0);
  }
  EXPECT_FALSE(outbox_.has_entry());
  inbox_.consumer().entries_consumed = kEntries + 1;
  EXPECT_FALSE(outbox_.has_entry()) << "more than was put";
  inbox_.consumer().entries_consumed = 1;
  EXPECT_TRUE(outbox_.has_entry());
  EXPECT_EQ(static_cast<std::uint32_t>(inbox_.entry(3).head), 3U);
}

TEST(Outbox, ALargerRingTakesAllItsEntriesBeforeThePeerPublishes) {
  constexpr std::uint32_t kMany = 4 * kHotEntries;
  const InboxLayout layout = plan_inbox(0, kMany, kPayloadBytes, 0);
  const OwnSegment segment = must(make_segment(layout.bytes));
  const InboxView inbox(*segment.mapping, layout);
  auto [ours, theirs] = socket_pair();
  Link link(std::move(ours));
  Outbox outbox;
  outbox.attach(inbox, false, {::getpid(), ::getuid()}, link);
  outbox.fences().begin(inbox.producer(), false);
  for (std::uint32_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(outbox.has_entry());
    outbox.put(EntryType::write_imm, kEntryHasImm, i, 0);
  }
  EXPECT_FALSE(outbox.has_entry());
  inbox.consumer().entries_consumed = inbox.first_entry() + 1;
  EXPECT_TRUE(outbox.has_entry());
}

TEST_F(RcOutbox, CutsPiecesOfAQuarterOfThePayloadRing) {
  const std::uint32_t quarter = kPayloadBytes / 4;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto room = outbox_.take_piece(1 << 20);
    ASSERT_TRUE(room);
    EXPECT_EQ(room->bytes, quarter);
    EXPECT_EQ(room->memory, inbox_.payload() + std::size_t{i} * quarter);
  }
  EXPECT_FALSE(outbox_.take_piece(1));
  inbox_.consumer().payload_consumed = quarter;
  EXPECT_TRUE(outbox_.take_piece(1));
}

TEST_F(RcOutbox, ContiguousRoomSkipsTheEndOfThePayloadRing) {
  ASSERT_EQ(outbox_.take_contiguous(kPayloadBytes - 16), 0U);
  inbox_.consumer().payload_consumed = kPayloadBytes - 16;
  EXPECT_EQ(outbox_.take_contiguous(24), 0U);
  EXPECT_EQ(outbox_.take_contiguous(8), 24U);
}

TEST_F(RcOutbox, RingsOnceForAnArmedPeer) {
  outbox_.put(EntryType::write_imm, 0, 0, 0);
  EXPECT_FALSE(is_rung());
  inbox_.doorbell().armed = kArmedForAny;
  outbox_.put(EntryType::write_imm, 0, 0, 0);
  EXPECT_TRUE(is_rung());
  outbox_.put(EntryType::write_imm, 0, 0, 0);
  EXPECT_FALSE(is_rung());
}

TEST_F(RcOutbox, RingsForSolicitedEntriesOnlyIfThatIsWanted) {
  inbox_.doorbell().armed = kArmedForSolicited;
  outbox_.put(EntryType::write_imm, 0, 0, 0);
  EXPECT_FALSE(is_rung());
  outbox_.put(EntryType::write_imm, kEntrySolicited, 0, 0);
  EXPECT_TRUE(is_rung());
}

TEST_F(RcOutbox, AcknowledgementsThatWereNotAskedForDoNotCount) {
  const std::uint32_t first = outbox_.want_ack();
  const std::uint32_t second = outbox_.want_ack();
  inbox_.consumer().acked = second + 1;
  outbox_.look_for_acks();
  EXPECT_FALSE(outbox_.has_ack(first));
  inbox_.consumer().acked = first;
  outbox_.look_for_acks();
  EXPECT_TRUE(outbox_.has_ack(first));
  EXPECT_FALSE(outbox_.has_all_acks());
}

// -- regions

using Kind = PeerRegions::Target::Kind;
constexpr std::uint32_t kKey = 0x4200;
constexpr std::uint64_t kStart = 0x10000;

class RcRegions : public RcParts {
 protected:
  RcRegions() { regions_.attach(inbox_, 0); }
  void enter(MrRow& row, std::uint32_t access, std::uint64_t arena_offset) {
    row.address = kStart;
    row.length = 100;
    row.arena_offset = arena_offset;
    row.access = access;
    row.rkey = kKey;
  }
  [[nodiscard]] Kind find(std::uint64_t address, std::uint64_t length) const {
    return regions_.find(kKey, address, length, IBV_ACCESS_REMOTE_WRITE).kind;
  }
  Fences fences_;
  PeerRegions regions_{fences_};
};

TEST_F(RcRegions, ARegionInTheArenaIsFoundWithinItsBounds) {
  enter(inbox_.rows()[0], IBV_ACCESS_REMOTE_WRITE | kRowInArena, 64);
  EXPECT_EQ(regions_.find(kKey, kStart + 1, 99, IBV_ACCESS_REMOTE_WRITE).memory, inbox_.arena() + 65);
  EXPECT_EQ(find(kStart + 1, 100), Kind::denied);
  EXPECT_EQ(find(kStart - 1, 2), Kind::denied);
  EXPECT_EQ(regions_.find(kKey, kStart, 1, IBV_ACCESS_REMOTE_READ).kind, Kind::denied);
}

TEST_F(RcRegions, ARowThatLeavesTheArenaIsDenied) {
  enter(inbox_.rows()[0], IBV_ACCESS_REMOTE_WRITE | kRowInArena, inbox_.arena_bytes - 50);
  EXPECT_EQ(find(kStart, 51), Kind::denied);
  EXPECT_EQ(find(kStart, 50), Kind::arena);
  enter(inbox_.rows()[0], IBV_ACCESS_REMOTE_WRITE | kRowInArena, ~std::uint64_t{0});
  EXPECT_EQ(find(kStart, 1), Kind::denied);
}

TEST_F(RcRegions, WithoutARowOrAProcessThePeerMustAssist) {
  EXPECT_EQ(find(kStart, 1), Kind::assisted);
  enter(inbox_.rows()[row_of(kKey)], IBV_ACCESS_REMOTE_WRITE, 0);
  EXPECT_EQ(find(kStart, 1), Kind::assisted);
  regions_.attach(inbox_, ::getpid());
  EXPECT_EQ(find(kStart, 1), Kind::process);
}

/// A queue pair that only remembers what it was asked.
class FakeOwner final : public RcOwner {
 public:
  std::shared_ptr<Link> link() override { return its_link; }
  bool may_peer_map() override { return false; }
  void fail(ibv_wc_status /*first*/) override { ++failures; }
  std::shared_ptr<Link> its_link;
  int failures = 0;
};

class RcOwnRegions : public RcParts {
 protected:
  RcOwnRegions() {
    region_.addr = buffer_;
    region_.length = sizeof buffer_;
    region_.rkey = kKey;
    region_.access = IBV_ACCESS_REMOTE_WRITE;
  }
  FakeOwner owner_;
  OwnRegions regions_{inbox_, owner_};
  MemoryRegion region_;
  std::byte buffer_[64];
};

TEST_F(RcOwnRegions, ARegionIsPublishedWithTheMarkOfThisProcess) {
  regions_.publish(region_);
  const MrRow& row = inbox_.rows()[row_of(kKey)];
  EXPECT_EQ(row.rkey, kKey);
  EXPECT_EQ(row.address, reinterpret_cast<std::uint64_t>(buffer_));
  EXPECT_EQ(inbox_.consumer().mark_token, own_space_mark().token);
  EXPECT_FALSE(regions_.are_of_other_process());
  regions_.retract(region_);
  EXPECT_EQ(row.rkey, 0U);
}

TEST_F(RcOwnRegions, TheArenaHasARowOfItsOwnAndNeedsNoMark) {
  region_.addr = inbox_.arena();
  region_.only_for = &regions_;
  regions_.publish(region_);
  regions_.note_arena_registered();
  EXPECT_EQ(inbox_.rows()[0].access, static_cast<std::uint32_t>(IBV_ACCESS_REMOTE_WRITE) | kRowInArena);
  EXPECT_EQ(inbox_.consumer().mark_token, 0U);
  EXPECT_FALSE(regions_.retract_all()) << "it stays";
  regions_.retract(region_);
  EXPECT_FALSE(regions_.is_arena_registered());
}

TEST_F(RcOwnRegions, RetractingWaitsForAnAccessUnderWay) {
  regions_.publish(region_);
  owner_.its_link = std::move(link_);
  inbox_.producer().lease = 1;
  std::thread peer([&] {
    while (inbox_.rows()[row_of(kKey)].rkey != 0) std::this_thread::yield();
    inbox_.producer().lease = 2;
  });
  regions_.retract(region_);
  EXPECT_EQ(inbox_.producer().lease, 2U);
  peer.join();
  EXPECT_EQ(owner_.failures, 0);
}

TEST_F(RcOwnRegions, APeerThatDoesNotEndItsAccessIsDisconnected) {
  regions_.publish(region_);
  owner_.its_link = std::move(link_);
  inbox_.producer().lease = 1;
  regions_.retract(region_);
  EXPECT_EQ(owner_.failures, 1);
}

// -- doorbells

TEST_F(RcParts, AStalledPeerIsRungOnce) {
  Fences fences;
  StalledPeer peer(inbox_.producer(), fences);
  inbox_.producer().waiting = 1;
  peer.ring_if_waiting();
  EXPECT_EQ(inbox_.producer().waiting, 1U) << "nobody to ring yet";
  peer.attach(*link_);
  peer.ring_if_waiting();
  EXPECT_TRUE(is_rung());
  peer.ring_if_waiting();
  EXPECT_FALSE(is_rung());
}

TEST_F(RcParts, AnArmingTakesABarrierOnlyBeforeAPeerWithoutFences) {
  End end;
  Arming arming(inbox_, static_cast<CompletionQueue&>(*end.cq));
  EXPECT_TRUE(arming.arm(ArmKind::solicited));
  EXPECT_EQ(inbox_.doorbell().armed, kArmedForSolicited);
  inbox_.producer().fences = 1;
  EXPECT_FALSE(arming.arm(ArmKind::any));
  EXPECT_EQ(inbox_.doorbell().armed, kArmedForAny);
}

TEST_F(RcParts, AnArmedConnectionCanBeListedUntilItsPeerRings) {
  End end;
  Arming arming(inbox_, static_cast<CompletionQueue&>(*end.cq));
  const auto map = must(OwnReadyMap::make());
  EXPECT_FALSE(arming.list_at(map, 7).lasts()) << "not armed";
  arming.arm(ArmKind::any);
  const Listing listing = arming.list_at(map, 7);
  EXPECT_TRUE(listing.lasts());
  EXPECT_EQ(inbox_.doorbell().armed, kListed | 7);
  arming.unlist();
  EXPECT_FALSE(listing.lasts());
}

}  // namespace
}  // namespace ringsock::soft::testing
