// Sends that must wait: no receive at the peer, a shared receive queue, separate completion queues.
#include <gtest/gtest.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

TEST(RcWaiting, ASendWithoutAReceiveWaitsAndKeepsItsInlineData) {
  RcPair pair;
  char memory[16] = {};
  auto mr = pair.bob.register_memory(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  {
    std::string gone_after_post = "kept";
    ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, gone_after_post, nullptr), 0);
    gone_after_post = "----";
  }
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  ASSERT_EQ(pair.bob.post_receive(3, {sge_of(memory, sizeof memory, mr->lkey)}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.bob.next().wr_id, 3U);
  EXPECT_STREQ(memory, "kept");
}

TEST(RcWaiting, LaterSendsStayBehindOneThatWaits) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "first", &pair.bob, 0, 1), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "later", &pair.bob, 0, 2), 0);
  EXPECT_NE(std::memcmp(pair.bob.arena.data(), "later", 5), 0);
  pair.bob.post_receives(1);
  EXPECT_EQ(pair.alice.next().wr_id, 1001U);
  EXPECT_EQ(pair.alice.next().wr_id, 1002U);
  EXPECT_EQ(std::memcmp(pair.bob.arena.data(), "later", 5), 0);
}

TEST(RcWaiting, AFullSendQueueRefuses) {
  RcPair pair({.send_wr = 2});
  EXPECT_EQ(pair.alice.post_text(IBV_WR_SEND, "1", nullptr), 0);
  EXPECT_EQ(pair.alice.post_text(IBV_WR_SEND, "2", nullptr), 0);
  EXPECT_EQ(pair.alice.post_text(IBV_WR_SEND, "3", nullptr), ENOMEM);
}

TEST(RcWaiting, RnrRetriesRunOut) {
  RcPair pair({.rnr_retry = 1});
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "nobody listens", nullptr), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(pair.alice.state(), IBV_QPS_ERR);
}

TEST(RcWaiting, RnrRetryZeroFailsAtOnce) {
  RcPair pair({.rnr_retry = 0});
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "x", nullptr), 0);
  EXPECT_EQ(End::poll_once(*pair.alice.cq).at(0).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(RcWaiting, PollingForReceivesAlsoPushesSendsThatCompleteElsewhere) {
  RcPair pair({.two_queues = true});
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, 0), 0);
  pair.bob.post_receives(1);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
  EXPECT_EQ(pair.bob.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(End::next(*pair.alice.send_cq).status, IBV_WC_SUCCESS);
}

TEST(RcWaiting, SharedReceivesAreUsedInOrderAndSendsCompleteWhenConsumed) {
  RcPair pair({}, {.srq = true});
  char memory[2][8] = {};
  auto mr = pair.bob.register_memory(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "one", nullptr, 0, 1), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "two", nullptr, 0, 2), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "w", &pair.bob, 0, 3), 0);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty()) << "no receive yet";
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());

  ASSERT_EQ(pair.bob.post_receive(10, {sge_of(memory[0], 8, mr->lkey)}), 0);
  EXPECT_EQ(pair.bob.next().wr_id, 10U);
  EXPECT_EQ(pair.alice.next().wr_id, 1001U);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty()) << "the write completes behind the second send";
  ASSERT_EQ(pair.bob.post_receive(11, {sge_of(memory[1], 8, mr->lkey)}), 0);
  EXPECT_EQ(pair.bob.next().wr_id, 11U);
  EXPECT_EQ(pair.alice.next().wr_id, 1002U);
  EXPECT_EQ(pair.alice.next().wr_id, 1003U);
  EXPECT_STREQ(memory[0], "one");
  EXPECT_STREQ(memory[1], "two");
}

TEST(RcWaiting, ASharedQueueThatRunsLowRaisesItsLimitEventOnce) {
  RcPair pair({}, {.srq = true});
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(pair.bob.post_receive(i), 0);
  ibv_srq_attr limit{};
  limit.srq_limit = 3;
  must(pair.bob.device->modify_srq(*pair.bob.srq, limit, IBV_SRQ_LIMIT));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "", nullptr), 0);
    EXPECT_EQ(pair.bob.next().status, IBV_WC_SUCCESS);
  }
  auto event = pair.bob.device->get_async_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  pair.bob.device->ack_async_event(*event);
  EXPECT_FALSE(pair.bob.device->get_async_event());
  limit.srq_limit = 65;
  EXPECT_EQ(pair.bob.device->modify_srq(*pair.bob.srq, limit, IBV_SRQ_LIMIT).error().code, EINVAL);
}

TEST(RcWaiting, TheAccepterUsesItsOwnMemfdWhenTheSpareRoomIsTooSmall) {
  RcPair pair({.receive_wr = 8, .arena_bytes = 4096}, {.receive_wr = 500, .arena_bytes = 1 << 20});
  pair.bob.post_receives(1);
  pair.alice.post_receives(1);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "far", &pair.bob, (1 << 20) - 3), 0);
  ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "near", &pair.alice, 4092), 0);
  EXPECT_EQ(pair.bob.next().opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(pair.bob.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(std::memcmp(pair.alice.arena.data() + 4092, "near", 4), 0);
}

}  // namespace
}  // namespace ringsock::soft::testing
