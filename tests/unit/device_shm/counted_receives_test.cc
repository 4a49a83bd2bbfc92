// Receives without elements that are posted by their number: verbs::RcExtensions::post_counted().
#include <gtest/gtest.h>

#include <array>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint64_t kId = 7;

int post_counted(End& end, std::uint64_t wr_id, std::uint32_t count) {
  return end.device->rc().post_counted(*end.qp, wr_id, count);
}

int write_with_immediate(RcPair& pair, std::uint32_t number) {
  return pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, number, number);
}

TEST(CountedReceives, EachMessageUsesOneAndCompletesInOrder) {
  RcPair pair;
  ASSERT_EQ(post_counted(pair.bob, kId, 3), 0);
  for (const std::uint32_t number : {11U, 12U, 13U}) ASSERT_EQ(write_with_immediate(pair, number), 0);
  for (const std::uint32_t number : {11U, 12U, 13U}) {
    const ibv_wc wc = pair.bob.next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, kId);
    EXPECT_EQ(wc.imm_data, number);
    EXPECT_EQ(wc.byte_len, 1U);
  }
  // The three are used up: the next message waits for a receive.
  ASSERT_EQ(write_with_immediate(pair, 14), 0);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  ASSERT_EQ(post_counted(pair.bob, kId, 1), 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.bob.next().imm_data, 14U);
}

TEST(CountedReceives, AsManyArePostedAsFindRoom) {
  RcPair pair({}, {.receive_wr = 16});
  EXPECT_EQ(post_counted(pair.bob, kId, 0), 0);
  EXPECT_EQ(post_counted(pair.bob, kId, 10), 0);
  EXPECT_EQ(post_counted(pair.bob, kId, 10), ENOMEM) << "six find room";
  EXPECT_EQ(post_counted(pair.bob, kId, 1), ENOMEM);
  EXPECT_EQ(pair.bob.post_receive(kId), ENOMEM);
  for (std::uint32_t number = 0; number < 16; ++number) ASSERT_EQ(write_with_immediate(pair, number), 0);
  for (std::uint32_t number = 0; number < 16; ++number) EXPECT_EQ(pair.bob.next().imm_data, number);
  EXPECT_EQ(post_counted(pair.bob, kId, UINT32_MAX), ENOMEM) << "the room of those that were used";
  for (std::uint32_t number = 0; number < 16; ++number) ASSERT_EQ(write_with_immediate(pair, number), 0);
  for (std::uint32_t number = 0; number < 16; ++number) EXPECT_EQ(pair.bob.next().imm_data, number);
}

TEST(CountedReceives, TheyKeepTheirPlaceAmongOthers) {
  RcPair pair;
  std::array<char, 8> text{};
  auto mr = pair.bob.register_memory(text.data(), text.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_EQ(post_counted(pair.bob, kId, 1), 0);
  ASSERT_EQ(pair.bob.post_receive(8, {sge_of(text.data(), text.size(), mr->lkey)}), 0);
  ASSERT_EQ(post_counted(pair.bob, 9, 2), 0);
  ASSERT_EQ(write_with_immediate(pair, 1), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "a letter"), 0);
  ASSERT_EQ(write_with_immediate(pair, 2), 0);
  ASSERT_EQ(write_with_immediate(pair, 3), 0);
  for (const std::uint64_t id : {kId, std::uint64_t{8}, std::uint64_t{9}, std::uint64_t{9}})
    EXPECT_EQ(pair.bob.next().wr_id, id);
  EXPECT_EQ(std::string(text.data(), text.size()), "a letter");
}

TEST(CountedReceives, AnotherIdIsAnotherReceive) {
  RcPair pair;
  ASSERT_EQ(post_counted(pair.bob, kId, 2), 0);
  ASSERT_EQ(post_counted(pair.bob, kId + 1, 2), 0);
  for (std::uint32_t number = 0; number < 4; ++number) ASSERT_EQ(write_with_immediate(pair, number), 0);
  for (const std::uint64_t id : {kId, kId, kId + 1, kId + 1}) EXPECT_EQ(pair.bob.next().wr_id, id);
}

TEST(CountedReceives, ASendWithBytesFindsNoRoomInThem) {
  RcPair pair;
  ASSERT_EQ(post_counted(pair.bob, kId, 2), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "x"), 0);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_LOC_LEN_ERR);
}

TEST(CountedReceives, EachIsFlushedWhenTheConnectionFails) {
  RcPair pair;
  ASSERT_EQ(post_counted(pair.bob, kId, 3), 0);
  ASSERT_EQ(write_with_immediate(pair, 1), 0);
  ASSERT_TRUE(pair.bob.modify_state(IBV_QPS_ERR));
  EXPECT_EQ(pair.bob.next().status, IBV_WC_SUCCESS) << "what has come is not lost";
  for (int i = 0; i < 2; ++i) {
    const ibv_wc flushed = pair.bob.next();
    EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(flushed.wr_id, kId);
  }
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  ASSERT_EQ(post_counted(pair.bob, kId, 2), 0) << "as ibv_post_recv(3) in this state";
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
}

TEST(CountedReceives, AQueuePairThatIsResetOrSharesAQueueTakesNone) {
  RcPair pair({}, {.srq = true});
  EXPECT_EQ(post_counted(pair.bob, kId, 1), EINVAL);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_RESET));
  EXPECT_EQ(post_counted(pair.alice, kId, 1), EINVAL);
}

TEST(CountedReceives, ASleepingSenderIsWokenForThem) {
  RcPair pair;
  ASSERT_EQ(write_with_immediate(pair, 1), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.alice.cq.get(), 0), 0);
  EXPECT_FALSE(pair.alice.channel_readable());
  ASSERT_EQ(post_counted(pair.bob, kId, 1), 0);
  EXPECT_TRUE(pair.alice.channel_readable());
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.bob.next().imm_data, 1U);
}

}  // namespace
}  // namespace ringsock::soft::testing
