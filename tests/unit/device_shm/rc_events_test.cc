// Arming, completion channels, waking sleepers.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/libc_calls.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

int arm(End& end, bool solicited = false) { return ibv_req_notify_cq(end.cq.get(), solicited); }
int write_imm(RcPair& pair, unsigned flags = 0) {
  return pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, 0, 0, flags);
}

/// What `sender` still has queued, waiting for receives, goes out by its polls.
void push_until_ended(End& sender, std::thread& receiver) {
  std::atomic<bool> done{false};
  std::thread pusher([&] {
    while (!done) End::poll_once(*sender.cq);
  });
  receiver.join();
  done = true;
  pusher.join();
}

TEST(RcEvents, AnArmedQueueWakesOnceForManyMessages) {
  RcPair pair;
  pair.bob.post_receives(8);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_FALSE(pair.bob.channel_readable()) << "not armed";
  EXPECT_EQ(pair.bob.next().status, IBV_WC_SUCCESS);

  ASSERT_EQ(arm(pair.bob), 0);
  EXPECT_FALSE(pair.bob.channel_readable());
  ASSERT_EQ(write_imm(pair), 0);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
  EXPECT_EQ(pair.bob.next_event(0), nullptr);
  EXPECT_FALSE(pair.bob.channel_readable());
  EXPECT_EQ(End::poll_once(*pair.bob.cq).size(), 2U);
}

TEST(RcEvents, AMessageBehindWorkForThePeerRingsThoughALookHasTakenTheFirstDoorbell) {
  RcPair pair({}, {.has_channel = false});
  pair.bob.post_receives(1);
  // Memory without a row in Bob's table is written by Bob himself, in his polls.
  std::array<std::uint64_t, 8> memory{};
  std::vector<verbs::Mr> regions;
  constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  while (regions.size() < 2 * kMrRows) regions.push_back(pair.bob.register_memory(memory.data(), sizeof memory, kAll));
  ASSERT_EQ(arm(pair.bob), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(memory.data());
  wr.wr.rdma.rkey = regions.back()->rkey;
  const std::uint64_t word = 7;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(&word, sizeof word, 0)}), 0);
  ASSERT_TRUE(pair.bob.link_readable());

  // Bob's thread is still looking before it sleeps: it does the work, and takes the doorbell.
  while (pair.bob.link_readable()) EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
  EXPECT_EQ(memory[0], word);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_TRUE(pair.bob.link_readable()) << "otherwise Bob's thread would sleep on";
}

TEST(RcEvents, SolicitedOnlyWakesForSolicitedMessages) {
  RcPair pair;
  pair.bob.post_receives(8);
  ASSERT_EQ(arm(pair.bob, true), 0);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_EQ(pair.bob.next_event(0), nullptr);
  ASSERT_EQ(write_imm(pair, IBV_SEND_SOLICITED), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
}

TEST(RcEvents, ArmingForLessDoesNotUndoArmingForMore) {
  RcPair pair;
  pair.bob.post_receives(8);
  ASSERT_EQ(arm(pair.bob), 0);
  ASSERT_EQ(arm(pair.bob, true), 0);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
}

TEST(RcEvents, ArmingAgainDoesNotLoseAnEventThatIsDue) {
  RcPair pair;
  pair.bob.post_receives(8);
  ASSERT_EQ(arm(pair.bob), 0);
  ASSERT_EQ(write_imm(pair), 0);
  ASSERT_EQ(arm(pair.bob), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.cq.get());
}

TEST(RcEvents, CompletionsOfThisSideWakeToo) {
  RcPair pair;
  ASSERT_EQ(arm(pair.alice), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0), 0);
  EXPECT_TRUE(pair.alice.channel_readable());
  EXPECT_EQ(pair.alice.next_event(), pair.alice.cq.get());
  EXPECT_FALSE(pair.alice.channel_readable());
}

TEST(RcEvents, AStalledSenderIsWokenWhenAReceiveIsPosted) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, 0), 0);
  ASSERT_EQ(arm(pair.alice), 0);
  EXPECT_EQ(pair.alice.next_event(0), nullptr);
  pair.bob.post_receives(1);
  EXPECT_EQ(pair.alice.next_event(), pair.alice.cq.get());
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
}

TEST(RcEvents, AReceiveThatComesJustBeforeArmingStillWakesTheStalledSender) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, 0), 0);
  pair.bob.post_receives(1);
  ASSERT_EQ(arm(pair.alice), 0);
  EXPECT_EQ(pair.alice.next_event(), pair.alice.cq.get());
}

TEST(RcEvents, AStalledSenderOfATooLongSendIsWokenWithItsFailure) {
  RcPair pair;
  pair.bob.post_receives(1);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "too long", nullptr), 0);
  ASSERT_EQ(arm(pair.alice), 0);
  EXPECT_EQ(pair.bob.next().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(pair.alice.next_event(), pair.alice.cq.get());
  EXPECT_EQ(pair.alice.next().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(RcEvents, ManyQueuesAreArmedTogether) {
  RcPair first, second;
  first.bob.post_receives(1);
  ibv_cq* queues[] = {first.bob.cq.get()};
  first.bob.device->arm(queues);
  ASSERT_EQ(write_imm(first), 0);
  EXPECT_EQ(first.bob.next_event(), first.bob.cq.get());
}

TEST(RcEvents, AnEventOfOneQueueIsNotReportedForTheOther) {
  RcPair pair({}, {.two_queues = true});
  pair.bob.post_receives(1);
  ASSERT_EQ(ibv_req_notify_cq(pair.bob.send_cq.get(), 0), 0);
  ASSERT_EQ(write_imm(pair), 0);
  EXPECT_EQ(pair.bob.next_event(0), nullptr);
  ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE, "y", &pair.alice, 0), 0);
  EXPECT_EQ(pair.bob.next_event(), pair.bob.send_cq.get());
}

// While it finds nothing, a poll looks now and then whether the peer is alive still, and reads the doorbell's packets
// then. What arrives after the look at the ring and before that one has rung for nobody else: the same poll must find
// it, or a thread that armed, polled, and goes to sleep on the link's descriptor sleeps for ever.
class AMessageBeforeThePacketsAreRead {
 public:
  explicit AMessageBeforeThePacketsAreRead(RcPair& pair) : recvmsg_(libc_calls.recvmsg) {
    sending_ = &pair;
    libc_calls.recvmsg = [](int fd, msghdr* message, int flags) {
      RcPair* const sender = std::exchange(sending_, nullptr);
      EXPECT_TRUE(sender == nullptr || write_imm(*sender) == 0);
      return ::recvmsg(fd, message, flags);
    };
  }
  AMessageBeforeThePacketsAreRead(const AMessageBeforeThePacketsAreRead&) = delete;
  AMessageBeforeThePacketsAreRead& operator=(const AMessageBeforeThePacketsAreRead&) = delete;
  ~AMessageBeforeThePacketsAreRead() { libc_calls.recvmsg = recvmsg_; }
  [[nodiscard]] bool was_sent() const { return sending_ == nullptr; }

 private:
  static inline RcPair* sending_ = nullptr;
  ssize_t (*recvmsg_)(int, msghdr*, int);
};

TEST(RcEvents, AWakeUpThatAPollTakesItselfIsNotLost) {
  RcPair pair;
  pair.bob.post_receives(1);
  ASSERT_EQ(arm(pair.bob), 0);
  const AMessageBeforeThePacketsAreRead message(pair);
  std::vector<ibv_wc> found;
  while (!message.was_sent()) {
    ASSERT_TRUE(found.empty());
    found = End::poll_once(*pair.bob.cq);
  }
  EXPECT_EQ(found.size(), 1U);
}

/// Sleeps on the channel whenever there is nothing; as every event-driven verbs program does.
void receive_sleeping(End& end, std::uint64_t messages) {
  for (std::uint64_t got = 0; got < messages;) {
    ASSERT_EQ(arm(end), 0);
    std::vector<ibv_wc> batch = End::poll_once(*end.cq);
    if (batch.empty()) {
      ASSERT_NE(end.next_event(), nullptr) << "a wake-up was lost after " << got << " messages";
      batch = End::poll_once(*end.cq);
    }
    for (const ibv_wc& wc : batch) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(end.post_receive(0), 0);
    }
    got += batch.size();
  }
}

TEST(RcEvents, NoWakeUpIsLostBetweenASenderAndASleeper) {
  constexpr std::uint64_t kMessages = 20'000;
  RcPair pair;
  pair.bob.post_receives(64);
  std::thread sleeper([&] { receive_sleeping(pair.bob, kMessages); });
  for (std::uint64_t sent = 0; sent < kMessages;) {
    if (write_imm(pair) == 0) {
      ++sent;
    }
    End::poll_once(*pair.alice.cq);
  }
  push_until_ended(pair.alice, sleeper);
}

TEST(RcEvents, TwoSleepersPingPong) {
  constexpr int kRounds = 3'000;
  RcPair pair;
  pair.alice.post_receives(4);
  pair.bob.post_receives(4);
  std::thread echo([&] {
    for (int i = 0; i < kRounds; ++i) {
      receive_sleeping(pair.bob, 1);
      ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "pong", &pair.alice, 0, 0, 0), 0);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(write_imm(pair), 0);
    receive_sleeping(pair.alice, 1);
  }
  echo.join();
}

// The sender's store of a message and its look whether somebody sleeps, against the sleeper's arming and its look for
// messages: both at the same moment, to some nanoseconds.
TEST(RcEvents, AMessageAndAnArmingAtTheSameMomentFindEachOther) {
  constexpr unsigned kRounds = 20'000;
  RcPair pair;
  pair.bob.post_receives(1);
  std::atomic<unsigned> round{0};
  std::thread sender([&] {
    for (unsigned i = 1; i <= kRounds; ++i) {
      while (round.load() < i) {
      }
      for (unsigned delay = i % 7; delay > 0; --delay) cpu_relax();
      ASSERT_EQ(write_imm(pair), 0);
      End::poll_once(*pair.alice.cq);
    }
  });
  for (unsigned i = 1; i <= kRounds; ++i) {
    round.store(i);
    for (unsigned delay = i % 31; delay > 0; --delay) cpu_relax();
    receive_sleeping(pair.bob, 1);
  }
  sender.join();
}

/// Takes `messages` without ever arming.
void receive_awake(End& end, std::uint64_t messages) {
  for (std::uint64_t got = 0; got < messages; ++got) {
    ASSERT_EQ(end.next().status, IBV_WC_SUCCESS);
    ASSERT_EQ(end.post_receive(0), 0);
  }
}

// An end that sleeps before every message asks its peer for fences, and withdraws that when it stays awake for a
// thousand.
TEST(RcEvents, NoWakeUpIsLostWhileFencesComeAndGo) {
  constexpr int kChanges = 20, kSleeps = 200, kAwake = 5'000;
  RcPair pair;
  pair.alice.post_receives(64);
  pair.bob.post_receives(64);
  std::thread bob([&] {
    for (int change = 0; change < kChanges; ++change) {
      for (int i = 0; i < kSleeps; ++i) {
        receive_sleeping(pair.bob, 1);
        ASSERT_EQ(pair.bob.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "pong", &pair.alice, 0, 0, 0), 0);
      }
      receive_awake(pair.bob, kAwake);
    }
  });
  for (int change = 0; change < kChanges; ++change) {
    for (int i = 0; i < kSleeps; ++i) {
      // The queue may be full of what bob has not taken yet.
      while (write_imm(pair) != 0) End::poll_once(*pair.alice.cq);
      receive_sleeping(pair.alice, 1);
    }
    for (int sent = 0; sent < kAwake;) {
      if (write_imm(pair) == 0) ++sent;
      End::poll_once(*pair.alice.cq);
    }
  }
  push_until_ended(pair.alice, bob);
}

TEST(RcEvents, ThreadsMayPostPollAndArmAtTheSameTime) {
  constexpr std::uint64_t kMessages = 30'000;
  RcPair pair;
  pair.bob.post_receives(64);
  std::atomic<std::uint64_t> received{0};
  const auto drain = [&] {
    while (received < kMessages) {
      for (const ibv_wc& wc : End::poll_once(*pair.bob.cq, 3)) {
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.bob.post_receive(0), 0);
        ++received;
      }
      arm(pair.bob);
      pair.bob.next_event(0);
    }
  };
  std::thread first(drain), second(drain);
  for (std::uint64_t sent = 0; sent < kMessages;) {
    if (write_imm(pair, IBV_SEND_SIGNALED) == 0) ++sent;
    End::poll_once(*pair.alice.cq);
  }
  while (received < kMessages) End::poll_once(*pair.alice.cq);
  first.join();
  second.join();
}

TEST(RcEvents, DestroyingAQueueWaitsForTheAcknowledgement) {
  RcPair pair;
  ASSERT_EQ(arm(pair.alice), 0);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0), 0);
  auto event = pair.alice.device->get_cq_event(*pair.alice.channel);
  ASSERT_TRUE(event);
  pair.alice.arena_mr.reset();
  pair.alice.qp.reset();
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    pair.alice.cq.reset();
    destroyed = true;
  });
  EXPECT_FALSE(destroyed);
  pair.alice.device->ack_cq_events(**event, 1);
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

}  // namespace
}  // namespace ringsock::soft::testing
