// Messages that are carried out by the call: verbs::RcExtensions::write_at_once().
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

verbs::InlineWrite write_to(const End& peer, const std::string& text, std::size_t at, std::uint32_t immediate) {
  return {text.data(), static_cast<std::uint32_t>(text.size()), peer.arena_mr->rkey,
          reinterpret_cast<std::uint64_t>(peer.arena.data() + at), immediate};
}

int write_at_once(End& end, const verbs::InlineWrite& write) { return end.device->rc().write_at_once(*end.qp, write); }

std::string text_at(const End& end, std::size_t at, std::size_t bytes) {
  return {reinterpret_cast<const char*>(end.arena.data()) + at, bytes};
}

TEST(WritesAtOnce, ArriveAsPostedOnesDo) {
  RcPair pair;
  pair.bob.post_receives(3);
  ASSERT_EQ(write_at_once(pair.alice, write_to(pair.bob, "one", 0, 11)), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "two", &pair.bob, 3, 12, 0), 0);
  ASSERT_EQ(write_at_once(pair.alice, write_to(pair.bob, "three", 6, 13)), 0);
  for (const auto& [immediate, bytes] : {std::pair{11U, 3U}, {12U, 3U}, {13U, 5U}}) {
    const ibv_wc wc = pair.bob.next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(wc.imm_data, immediate);
    EXPECT_EQ(wc.byte_len, bytes);
  }
  EXPECT_EQ(text_at(pair.bob, 0, 11), "onetwothree");
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty()) << "none asked for a completion";
}

TEST(WritesAtOnce, WakeASleeper) {
  RcPair pair;
  pair.bob.post_receives(1);
  ASSERT_EQ(ibv_req_notify_cq(pair.bob.cq.get(), 0), 0);
  ASSERT_EQ(write_at_once(pair.alice, write_to(pair.bob, "x", 0, 1)), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
}

TEST(WritesAtOnce, AreNotBegunWithoutAReceive) {
  RcPair pair;
  EXPECT_EQ(write_at_once(pair.alice, write_to(pair.bob, "early", 0, 1)), EAGAIN);
  pair.bob.post_receives(1);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  EXPECT_NE(text_at(pair.bob, 0, 5), "early");
  EXPECT_EQ(write_at_once(pair.alice, write_to(pair.bob, "later", 0, 2)), 0);
  EXPECT_EQ(pair.bob.next().imm_data, 2U);
}

TEST(WritesAtOnce, DoNotOvertakeWhatIsQueued) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "first", &pair.bob, 0, 1, 0), 0);
  pair.bob.post_receives(2);
  ASSERT_EQ(write_at_once(pair.alice, write_to(pair.bob, "second", 5, 2)), EAGAIN);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "second", &pair.bob, 5, 2), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS) << "both have been carried out";
  for (const std::uint32_t number : {1U, 2U}) EXPECT_EQ(pair.bob.next().imm_data, number);
}

TEST(WritesAtOnce, ReachNoMemoryThatIsNotGiven) {
  RcPair pair;
  pair.bob.post_receives(1);
  verbs::InlineWrite wrong = write_to(pair.bob, "wrong", 0, 1);
  wrong.rkey += 1;
  EXPECT_EQ(write_at_once(pair.alice, wrong), EAGAIN);
  verbs::InlineWrite beyond = write_to(pair.bob, "beyond", pair.bob.arena.size() - 3, 1);
  EXPECT_EQ(write_at_once(pair.alice, beyond), EAGAIN);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
}

TEST(WritesAtOnce, AreLeftToAPostWhereThePeerHasGone) {
  RcPair pair;
  pair.bob.post_receives(1);
  pair.bob.link->hang_up();
  EXPECT_EQ(pair.alice.post_receive(1), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(write_at_once(pair.alice, write_to(pair.bob, "late", 0, 1)), EAGAIN);
}

}  // namespace
}  // namespace ringsock::soft::testing
