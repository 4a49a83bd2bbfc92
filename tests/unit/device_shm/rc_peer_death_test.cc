// The peer goes away: closes, or is killed in the middle.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

TEST(RcPeerDeath, WhatWasSentIsDeliveredThenReceivesFlush) {
  RcPair pair;
  pair.bob.post_receives(3);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "last words", &pair.bob, 0, 5), 0);
  pair.alice.arena_mr.reset();
  pair.alice.qp.reset();
  pair.alice.link.reset();

  const ibv_wc delivered = pair.bob.next();
  EXPECT_EQ(delivered.status, IBV_WC_SUCCESS);
  EXPECT_EQ(delivered.imm_data, 5U);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.bob.state(), IBV_QPS_ERR);
  EXPECT_FALSE(pair.bob.device->get_async_event()) << "a peer that goes is no catastrophe of ours";
}

TEST(RcPeerDeath, PendingSendsFailWithRetryExceededThenFlush) {
  RcPair pair;
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_EQ(pair.bob.post_text(IBV_WR_SEND, "unheard", nullptr, 0, i), 0);
  pair.alice.link->hang_up();
  EXPECT_EQ(pair.bob.next().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
}

TEST(RcPeerDeath, TheFirstSendAfterwardsFailsWithRetryExceeded) {
  RcPair pair;
  pair.bob.post_receives(1);
  pair.alice.link->hang_up();
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE, "x", &pair.alice, 0), 0);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_RETRY_EXC_ERR);
  ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE, "x", &pair.alice, 0), 0);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
}

TEST(RcPeerDeath, ASleeperIsWoken) {
  RcPair pair;
  pair.bob.post_receives(1);
  ASSERT_EQ(ibv_req_notify_cq(pair.bob.cq.get(), 0), 0);
  pair.alice.link->hang_up();
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
  EXPECT_EQ(pair.bob.next().status, IBV_WC_WR_FLUSH_ERR);
}

TEST(RcPeerDeath, APeerInErrMakesStalledSendsFail) {
  RcPair pair;
  ASSERT_EQ(pair.bob.post_text(IBV_WR_SEND, "waits for ever", nullptr), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.bob.cq.get(), 0), 0);
  ASSERT_TRUE(pair.alice.modify_state(IBV_QPS_ERR));
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
  EXPECT_EQ(pair.bob.next().status, IBV_WC_RETRY_EXC_ERR);
}

/// A child process that is one end and sends numbered messages until it is killed.
class KilledPeer : public ::testing::TestWithParam<bool> {};

TEST_P(KilledPeer, EverythingBeforeTheKillIsWholeAndTheEndIsPrompt) {
  const bool sleeping = GetParam();
  auto pair = std::make_unique<RcPair>();
  End& bob = pair->bob;
  for (int i = 0; i < 64; ++i) ASSERT_EQ(bob.post_receive(0), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Or the parent's end would live on in us.
    ::close(bob.link->fd());
    for (std::uint32_t i = 0;; ++i) {
      const std::string text(1 + i % 1000, static_cast<char>(i));
      while (pair->alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, text, &bob, 0, i, 0) != 0) {
        End::poll_once(*pair->alice.cq);
      }
      End::poll_once(*pair->alice.cq);
    }
  }
  const int alices = pair->alice.link->fd();
  ::close(alices);
  std::uint32_t received = 0;
  Nanos killed{0};
  bool flushed = false;
  while (!flushed) {
    if (sleeping) {
      ASSERT_EQ(ibv_req_notify_cq(bob.cq.get(), 0), 0);
    }
    auto batch = End::poll_once(*bob.cq);
    if (batch.empty() && sleeping) {
      ASSERT_NE(bob.next_event(), nullptr);
      batch = End::poll_once(*bob.cq);
    }
    for (const ibv_wc& wc : batch) {
      if (wc.status == IBV_WC_WR_FLUSH_ERR) {
        flushed = true;
        break;
      }
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.imm_data, received);
      ASSERT_EQ(wc.byte_len, 1 + received % 1000);
      ++received;
      ASSERT_EQ(bob.post_receive(0), 0);
    }
    if (received > 5'000 && killed == Nanos::zero()) {
      ::kill(child, SIGKILL);
      int status = 0;
      ::waitpid(child, &status, 0);
      killed = monotonic_now();
    }
  }
  EXPECT_NE(killed, Nanos::zero());
  EXPECT_GT(received, 5'000U);
  // Alice's number is free here; give it back before her link closes it.
  ASSERT_EQ(::dup2(STDERR_FILENO, alices), alices);
}

INSTANTIATE_TEST_SUITE_P(Waiting, KilledPeer, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "sleeping" : "spinning"; });

}  // namespace
}  // namespace ringsock::soft::testing
