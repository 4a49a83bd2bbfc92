// The requests that a connection sends: how many there may be, what is signalled, what is under way.
#include "librsocket/send_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fakes/fake_queue_pair.h"

namespace ringsock::rs {
namespace {

constexpr std::uint16_t kEntries = 20;
constexpr std::uint16_t kForData = kEntries - SendRequests::kControlSlots;

/// On a device that takes everything inline.
struct Queue {
  explicit Queue(bool words_by_send = false) : sends(ends, kEntries, words_by_send) {
    sends.begin(pair.qp(), true, {});
  }

  /// Posts a data message.
  bool post(const char* bytes = "x") {
    ibv_sge piece{address_of(bytes), static_cast<std::uint32_t>(std::strlen(bytes)), 0};
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = word_in_network_order({wire::RsOpcode::data, piece.length});
    request.send_flags = IBV_SEND_INLINE;
    request.sg_list = &piece;
    request.num_sge = 1;
    return sends.post_data(request, 0, false);
  }
  Status post_control() {
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    return sends.post_control(request);
  }
  /// The queue pair completes what is signalled and was posted before.
  void complete_all() {
    for (const fakes::PostedSend& one : pair.sent)
      if ((one.flags & IBV_SEND_SIGNALED) != 0) sends.finish(one.id);
    pair.sent.clear();
  }

  fakes::FakeQueuePair pair;
  ConnectionEnds ends;
  SendRequests sends;
};

TEST(SendRequests, SignalsSoOftenThatDataNeverStopsForGood) {
  Queue queue;
  for (int message = 0; message < kForData; ++message) {
    ASSERT_TRUE(queue.sends.has_room());
    ASSERT_TRUE(queue.post());
  }
  // The other entries are for control messages.
  EXPECT_FALSE(queue.sends.has_room());
  EXPECT_TRUE(queue.sends.has_under_way(queue.sends.posted()));

  queue.complete_all();

  EXPECT_TRUE(queue.sends.has_room());
  EXPECT_FALSE(queue.sends.has_under_way(queue.sends.posted()));
  EXPECT_EQ(queue.sends.posted(), kForData);
}

/// A device that carries small messages out by the call.
class AtOnce : public verbs::RcExtensions {
 public:
  int write_at_once(ibv_qp& /*qp*/, const verbs::InlineWrite& write) override {
    if (answer == 0) written.emplace_back(static_cast<const char*>(write.data), write.length);
    return answer;
  }
  int answer = 0;
  std::vector<std::string> written;
};

constexpr std::uint32_t kWord = 0x1234;
const verbs::InlineWrite kHello{"hello", 5, 7, 4096, kWord};

TEST(SendRequests, WhatIsCarriedOutAtOnceIsSignalledAsOftenAsOtherRequests) {
  Queue plain, queue;
  AtOnce device;
  for (int message = 0; message < kForData; ++message) {
    ASSERT_TRUE(plain.post());
    ASSERT_TRUE(queue.sends.has_room());
    ASSERT_TRUE(queue.sends.post_inline(device, kHello));
  }
  const auto is_signalled = [](const fakes::PostedSend& one) { return (one.flags & IBV_SEND_SIGNALED) != 0; };
  const auto signalled = std::count_if(plain.pair.sent.begin(), plain.pair.sent.end(), is_signalled);
  EXPECT_EQ(static_cast<long>(queue.pair.sent.size()), signalled) << "only those are posted";
  EXPECT_EQ(device.written, std::vector<std::string>(static_cast<std::size_t>(kForData - signalled), "hello"));
  EXPECT_FALSE(queue.sends.has_room());
  queue.complete_all();
  EXPECT_TRUE(queue.sends.has_room());
  EXPECT_FALSE(queue.sends.has_under_way(queue.sends.posted()));
}

TEST(SendRequests, WhatTheDeviceDoesNotBeginIsPosted) {
  Queue queue;
  AtOnce device;
  device.answer = EAGAIN;
  ASSERT_TRUE(queue.sends.post_inline(device, kHello));
  ASSERT_EQ(queue.pair.sent.size(), 1U);
  const fakes::PostedSend& posted = queue.pair.sent.front();
  EXPECT_EQ(posted.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(posted.flags, static_cast<unsigned>(IBV_SEND_INLINE));
  EXPECT_EQ(posted.payload, "hello");
  EXPECT_EQ(posted.address, 4096U);
  EXPECT_EQ(posted.key, 7U);
  EXPECT_EQ(posted.immediate, kWord);
  EXPECT_EQ(queue.sends.posted(), 1U);
}

TEST(SendRequests, AMessageThatNobodyHearsIsToldOf) {
  Queue queue;
  AtOnce device;
  device.answer = verbs::kPostedUnheard;
  EXPECT_FALSE(queue.sends.post_inline(device, kHello));
  EXPECT_TRUE(queue.sends.take_unheard());
  EXPECT_EQ(queue.ends.failure(), 0);
}

TEST(SendRequests, ControlMessagesFindNoSlotUntilOneIsFinished) {
  Queue queue;
  for (unsigned slot = 0; slot < SendRequests::kControlSlots; ++slot) ASSERT_TRUE(queue.post_control());
  const Status refused = queue.post_control();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EAGAIN);
  EXPECT_FALSE(queue.sends.is_drained());

  queue.sends.finish(queue.pair.sent[2].id);

  EXPECT_TRUE(queue.post_control());
  queue.sends.finish(queue.pair.sent[0].id);
  queue.complete_all();
  EXPECT_TRUE(queue.sends.is_drained());
}

TEST(SendRequests, TheEndNeedsNoSlot) {
  Queue queue;
  for (int message = 0; message < kForData; ++message) ASSERT_TRUE(queue.post());
  for (unsigned slot = 0; slot < SendRequests::kControlSlots; ++slot) ASSERT_TRUE(queue.post_control());
  queue.complete_all();
  ASSERT_TRUE(queue.sends.is_drained());

  EXPECT_TRUE(queue.sends.send_end(wire::RsControl::disconnect));

  EXPECT_FALSE(queue.sends.is_drained());
  ASSERT_EQ(queue.pair.sent.size(), 1u);
  EXPECT_EQ(queue.pair.sent[0].immediate, word_in_network_order(wire::RsControl::disconnect));
  queue.complete_all();
  EXPECT_TRUE(queue.sends.is_drained());
}

TEST(SendRequests, TellsAPeerThatIsNotReadyOfNoEnd) {
  Queue queue;
  queue.sends.hold();
  const Status refused = queue.sends.send_end(wire::RsControl::shutdown);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOTCONN);
  EXPECT_TRUE(queue.pair.sent.empty());

  EXPECT_TRUE(queue.sends.let_go());
  EXPECT_FALSE(queue.sends.let_go());
  EXPECT_TRUE(queue.sends.send_end(wire::RsControl::shutdown));
}

TEST(SendRequests, WithoutImmediateDataAMessageIsAWriteAndAWord) {
  Queue queue(true);
  ASSERT_TRUE(queue.post("bytes"));
  ASSERT_EQ(queue.pair.sent.size(), 2u);
  EXPECT_EQ(queue.pair.sent[0].opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(queue.pair.sent[0].payload, "bytes");
  EXPECT_EQ(queue.pair.sent[1].opcode, IBV_WR_SEND);
  const std::uint32_t word = wire::encode_rs_message({wire::RsOpcode::data, 5});
  EXPECT_EQ(queue.pair.sent[1].payload, std::string(reinterpret_cast<const char*>(&word), sizeof word));
}

TEST(SendRequests, ARefusedRequestEndsTheConnection) {
  Queue queue;
  queue.pair.refuses = EINVAL;
  EXPECT_FALSE(queue.post());
  EXPECT_EQ(queue.ends.failure(), ECONNRESET);
}

TEST(SendRequests, AfterAFailureNothingIsUnderWay) {
  Queue queue;
  ASSERT_TRUE(queue.post());
  ASSERT_TRUE(queue.post_control());
  EXPECT_TRUE(queue.sends.is_busy());
  queue.sends.note_failed_work();
  EXPECT_FALSE(queue.sends.has_under_way(queue.sends.posted()));
  EXPECT_FALSE(queue.sends.is_busy());
}

}  // namespace
}  // namespace ringsock::rs
