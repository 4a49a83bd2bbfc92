// Messages that are carried out by the call: verbs::RcExtensions::write_at_once() and write_pair_at_once().
#include <gtest/gtest.h>

#include <array>
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

/// "headan" and "d body", of a list of "head" and "and body".
struct TwoMessages {
  explicit TwoMessages(const End& peer)
      : list{{{reinterpret_cast<std::uint64_t>(head.data()), 4, 0},
              {reinterpret_cast<std::uint64_t>(body.data()), 8, 0}}},
        pair{list, part(peer, 100, 21), part(peer, 0, 22)} {}
  static verbs::WritePair::Part part(const End& peer, std::size_t at, std::uint32_t immediate) {
    return {6, peer.arena_mr->rkey, reinterpret_cast<std::uint64_t>(peer.arena.data() + at), immediate};
  }
  const std::string head = "head", body = "and body";
  std::array<ibv_sge, 2> list;
  verbs::WritePair pair;
};

TEST(WritesAtOnce, APairHasTheBytesOfOneList) {
  RcPair pair;
  pair.bob.post_receives(2);
  const TwoMessages two(pair.bob);
  ASSERT_EQ(pair.alice.device->rc().write_pair_at_once(*pair.alice.qp, two.pair), 0);
  for (const auto& [immediate, bytes] : {std::pair{21U, 6U}, {22U, 6U}}) {
    const ibv_wc wc = pair.bob.next();
    EXPECT_EQ(wc.imm_data, immediate);
    EXPECT_EQ(wc.byte_len, bytes);
  }
  EXPECT_EQ(text_at(pair.bob, 100, 6), "headan");
  EXPECT_EQ(text_at(pair.bob, 0, 6), "d body");
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
}

TEST(WritesAtOnce, APairIsNotBegunWithoutTwoReceivesOrWhereItsMemoryIsNotGiven) {
  RcPair pair;
  pair.bob.post_receives(1);
  TwoMessages two(pair.bob);
  EXPECT_EQ(pair.alice.device->rc().write_pair_at_once(*pair.alice.qp, two.pair), EAGAIN);
  pair.bob.post_receives(1);
  two.pair.second.rkey += 1;
  EXPECT_EQ(pair.alice.device->rc().write_pair_at_once(*pair.alice.qp, two.pair), EAGAIN);
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
}

}  // namespace
}  // namespace ringsock::soft::testing
