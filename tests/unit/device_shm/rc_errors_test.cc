// The error completions of ibv_poll_cq(3), and what becomes of the queue pair.
#include <gtest/gtest.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

TEST(RcErrors, WrongLocalKeyIsALocalProtectionError) {
  RcPair pair;
  char data[8] = {};
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pair.bob.arena.data());
  wr.wr.rdma.rkey = pair.bob.arena_mr->rkey;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(data, sizeof data, 12345)}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_LOC_PROT_ERR);  // unsignalled, but failures always complete
  EXPECT_EQ(pair.alice.state(), IBV_QPS_ERR);
}

TEST(RcErrors, BeyondTheLocalRegionIsALocalProtectionError) {
  RcPair pair;
  char data[8] = {};
  auto mr = pair.alice.register_memory(data, sizeof data - 1, 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  pair.bob.post_receives(1);
  ASSERT_EQ(pair.alice.post(wr, {sge_of(data, sizeof data, mr->lkey)}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_LOC_PROT_ERR);
}

TEST(RcErrors, ReadIntoMemoryThatMayNotBeWrittenIsALocalProtectionError) {
  RcPair pair;
  char data[8] = {};
  auto mr = pair.alice.register_memory(data, sizeof data, 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_READ;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(data, sizeof data, mr->lkey)}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_LOC_PROT_ERR);
}

TEST(RcErrors, WriteBeyondTheArenaIsARemoteAccessErrorAndTouchesNothing) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "12345678", &pair.bob, pair.bob.arena.size() - 7), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair.bob.arena.back(), std::byte{0});
  // Everything later is flushed, and so are receives.
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(pair.alice.post_receive(4), 0);
  const ibv_wc flushed = pair.alice.next();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 4U);
}

TEST(RcErrors, ReadOfTheArenaIsDeniedBecauseItOnlyAllowsWrites) {
  RcPair pair;
  char data[8] = {};
  auto mr = pair.alice.register_memory(data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pair.bob.arena.data());
  wr.wr.rdma.rkey = pair.bob.arena_mr->rkey;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(data, sizeof data, mr->lkey)}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_REM_ACCESS_ERR);
}

TEST(RcErrors, SendLongerThanTheReceiveFailsAtBothEnds) {
  RcPair pair;
  char small[4];
  auto mr = pair.bob.register_memory(small, sizeof small, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_EQ(pair.bob.post_receive(1, {sge_of(small, sizeof small, mr->lkey)}), 0);
  ASSERT_EQ(pair.bob.post_receive(2, {sge_of(small, sizeof small, mr->lkey)}), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "too long", nullptr), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "next", nullptr), 0);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty()) << "the sender cannot know yet";

  EXPECT_EQ(pair.bob.next().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.bob.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_WR_FLUSH_ERR);
}

TEST(RcErrors, ReceiveWithAWrongKeyIsALocalProtectionErrorAndTheSendersOperationFails) {
  RcPair pair;
  char memory[64];
  ASSERT_EQ(pair.bob.post_receive(1, {sge_of(memory, sizeof memory, 99)}), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "hello", nullptr), 0);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(pair.bob.state(), IBV_QPS_ERR);
}

TEST(RcErrors, BadRequestsAreRefusedAtOnce) {
  RcPair pair;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_TSO;
  EXPECT_EQ(pair.alice.post(wr, {}), EINVAL);
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(pair.alice.post(wr, std::vector<ibv_sge>(5)), EINVAL) << "more elements than the queue was made for";
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_INLINE;
  EXPECT_EQ(pair.alice.post(wr, {}), EINVAL);
  EXPECT_EQ(pair.alice.post_receive(1, std::vector<ibv_sge>(5)), EINVAL);
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(pair.alice.post_receive(i), 0);
  EXPECT_EQ(pair.alice.post_receive(64), ENOMEM);
}

TEST(RcErrors, MovingToErrFlushesInOrder) {
  RcPair pair;
  pair.bob.post_receives(0);
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "stalled", nullptr, 0, i), 0);
    ASSERT_EQ(pair.alice.post_receive(i), 0);
  }
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_ERR));
  for (std::uint64_t i = 0; i < 3; ++i) {
    const ibv_wc wc = pair.alice.next();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 1000 + i);
  }
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(pair.alice.next().wr_id, i);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
}

TEST(RcErrors, IllegalTransitionsAreRefused) {
  RcPair pair;
  EXPECT_EQ(pair.alice.modify_state(IBV_QPS_INIT).error().code, EINVAL);
  EXPECT_EQ(pair.alice.modify_state(IBV_QPS_RTR).error().code, EINVAL);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_SQD));
  pair.bob.post_receives(1);
  // A drained queue takes sends and keeps them until it is in RTS again.
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "", nullptr), 0);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_RTS));
  EXPECT_EQ(pair.bob.next().status, IBV_WC_SUCCESS);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_ERR));
  EXPECT_EQ(pair.alice.modify_state(IBV_QPS_RTS).error().code, EINVAL);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_RESET));
  EXPECT_EQ(pair.alice.post_text(IBV_WR_SEND, "", nullptr), EINVAL);
}

TEST(RcErrors, ResetForgetsWhatWasPostedWithoutCompletions) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "waits", nullptr), 0);
  pair.alice.post_receives(2);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_RESET));
  EXPECT_EQ(pair.alice.post_receive(1), EINVAL);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_ERR));
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
}

TEST(RcErrors, AFullCompletionQueueRaisesAnAsyncEvent) {
  RcPair pair({.cqe = 2, .signal_all = true});
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0), 0);
  auto event = pair.alice.device->get_async_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event->element.cq, pair.alice.cq.get());
  pair.alice.device->ack_async_event(*event);
  EXPECT_EQ(pair.alice.device->get_async_event().error().code, EAGAIN);
}

TEST(RcErrors, ParentsCannotBeDestroyedBeforeTheirChildren) {
  RcPair pair;
  EXPECT_EQ(pair.alice.device->destroy_cq(pair.alice.cq.get()), EBUSY);
  EXPECT_EQ(pair.alice.device->dealloc_pd(pair.alice.pd.get()), EBUSY);
  EXPECT_EQ(pair.alice.device->destroy_comp_channel(pair.alice.channel.get()), EBUSY);
  EXPECT_EQ(pair.alice.device->destroy_qp(pair.alice.qp.get()), EBUSY) << "its arena is registered";
}

}  // namespace
}  // namespace ringsock::soft::testing
