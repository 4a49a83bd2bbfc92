// A peer that writes whatever it likes into the shared memory: nothing worse than an error may follow.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "core/device/shm/memory/segment.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

/// Alice's side, driven by hand: the raw view of Bob's inbox.
class HostilePeer : public ::testing::Test {
 protected:
  HostilePeer() {
    bob_.create(nullptr);
    const QueuePairOffer offer = wiring_of(*bob_.qp).offer();
    RcWiring& bobs = wiring_of(*bob_.qp);
    segment_ = must(map_peer_segment(UniqueFd(::dup(bobs.offer_memfd()->get())), bobs.offer().memory, UINT64_MAX));
    inbox_ = InboxView(*segment_, offer.inbox);
    outbox_layout_ = offer.spare;
    outbox_ = InboxView(*segment_, offer.spare);
    auto [a, b] = socket_pair();
    socket_ = std::move(a);
    QueuePairOffer reply{};
    reply.inbox = offer.spare;
    reply.qp_num = 99;
    must(wiring_of(*bob_.qp).attach(reply, nullptr, std::make_shared<Link>(std::move(b)), {}, 7));
  }
  void put(std::uint32_t index, EntryType type, std::uint8_t flags, std::uint64_t body) {
    index += inbox_.first_entry();
    Entry& entry = inbox_.entry(index);
    entry.body.store(body);
    entry.head.store(inbox_.lap(index) << 48 | std::uint64_t{static_cast<std::uint8_t>(type)} << 40 |
                     std::uint64_t{flags} << 32);
  }
  void expect_fatal() {
    End::poll_once(*bob_.cq);
    EXPECT_EQ(bob_.state(), IBV_QPS_ERR);
    auto event = bob_.device->get_async_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_FATAL);
    bob_.device->ack_async_event(*event);
  }

  End bob_;
  std::shared_ptr<MappedSegment> segment_;
  InboxView inbox_, outbox_;
  InboxLayout outbox_layout_{};
  UniqueFd socket_;
};

TEST_F(HostilePeer, AMessageWithoutAReceiveIsFatal) {
  put(0, EntryType::write_imm, 0, 5);
  expect_fatal();
}

TEST_F(HostilePeer, AnUnknownEntryIsFatal) {
  put(0, static_cast<EntryType>(200), 0, 0);
  expect_fatal();
}

TEST_F(HostilePeer, ASendLongerThanThePayloadRingIsFatal) {
  bob_.post_receives(1);
  put(0, EntryType::send, 0, UINT64_MAX);
  expect_fatal();
}

TEST_F(HostilePeer, AnAssistedRequestTooShortForItsHeaderIsFatal) {
  put(0, EntryType::assist, 0, sizeof(std::uint64_t));
  expect_fatal();
}

TEST_F(HostilePeer, AnAssistedRequestForMemoryThatIsNotRegisteredIsRefused) {
  auto* words = reinterpret_cast<std::uint64_t*>(inbox_.payload());
  words[0] = 1;                                       // write, key 0
  words[1] = reinterpret_cast<std::uint64_t>(&bob_);  // where it likes
  words[2] = 8;
  put(0, EntryType::assist, 0, 48 + 8);
  EXPECT_TRUE(End::poll_once(*bob_.cq).empty());
  EXPECT_EQ(bob_.state(), IBV_QPS_ERR);
}

TEST_F(HostilePeer, AnAssistedWriteMayNotClaimMoreDataThanItBrought) {
  std::vector<char> target(1 << 20);
  auto mr = bob_.register_memory(target.data(), target.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  auto* words = reinterpret_cast<std::uint64_t*>(inbox_.payload());
  words[0] = 1 | std::uint64_t{mr->rkey} << 32;
  words[1] = reinterpret_cast<std::uint64_t>(target.data());
  words[2] = target.size();
  put(0, EntryType::assist, 0, 48 + 8);
  End::poll_once(*bob_.cq);
  EXPECT_EQ(bob_.state(), IBV_QPS_ERR);
}

TEST_F(HostilePeer, ARowThatPointsOutsideTheArenaIsDenied) {
  // A peer that claims a region of its arena beyond the arena's end.
  MrRow& row = outbox_.rows()[0];
  row.address.store(0x10000);
  row.length.store(UINT64_MAX - 0x10000);
  row.arena_offset.store(outbox_layout_.arena_bytes - 4);
  row.access.store(kRowInArena | IBV_ACCESS_REMOTE_WRITE);
  row.rkey.store(77);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_INLINE;
  wr.wr.rdma.rkey = 77;
  wr.wr.rdma.remote_addr = 0x10000;
  char data[8] = {};
  ASSERT_EQ(bob_.post(wr, {sge_of(data, sizeof data, 0)}), 0);
  EXPECT_EQ(bob_.next().status, IBV_WC_REM_ACCESS_ERR);
}

/// Any word of both inboxes, any value, any time; Bob sends, receives, arms. Sanitizers see what he touches.
class Scribbler : public HostilePeer, public ::testing::WithParamInterface<unsigned> {};

TEST_P(Scribbler, OnlyErrorsFollow) {
  std::mt19937_64 random(GetParam());
  // Values that are likely to hurt, and places that are likely to matter.
  const auto value = [&]() -> std::uint64_t {
    switch (random() % 5) {
      case 0: return random();
      case 1: return ~std::uint64_t{0};
      case 2: return 0;
      case 3:
        return (std::uint64_t{1 + random() % 2} << 48) | (std::uint64_t{1 + random() % 3} << 40) |
               (random() % 16) << 32;
      default: return std::uint64_t{1} << (random() % 64);
    }
  };
  const std::size_t hot_words = (16 * inbox_.ring_entries + kArenaOffset) / 8 + 64;
  std::byte* bases[] = {reinterpret_cast<std::byte*>(inbox_.ring()), reinterpret_cast<std::byte*>(outbox_.ring())};
  char memory[256];
  auto mr = bob_.register_memory(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  std::uint64_t calls = 0;
  for (int step = 0; step < 20'000; ++step) {
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(bases[random() % 2]);
    words[random() % hot_words].store(value(), std::memory_order_relaxed);
    bob_.post_receive(1, {sge_of(memory, sizeof memory, mr->lkey)});
    ibv_send_wr wr{};
    wr.send_flags = random() % 2 != 0 ? IBV_SEND_SIGNALED : 0;
    wr.opcode = std::array{IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
                           IBV_WR_ATOMIC_FETCH_AND_ADD}[random() % 4];
    wr.wr.rdma.rkey = outbox_.rows()[random() % kMrRows].rkey.load();
    wr.wr.rdma.remote_addr = outbox_.rows()[0].address.load();
    bob_.post(wr, {sge_of(memory, wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : random() % 256, mr->lkey)});
    calls += End::poll_once(*bob_.cq).size();
    if (random() % 64 == 0) ibv_req_notify_cq(bob_.cq.get(), 0);
    bob_.next_event(0);
    if (bob_.state() == IBV_QPS_ERR) break;
  }
  SUCCEED() << calls;
}

INSTANTIATE_TEST_SUITE_P(Seeds, Scribbler, ::testing::Range(0U, 200U));

}  // namespace
}  // namespace ringsock::soft::testing
