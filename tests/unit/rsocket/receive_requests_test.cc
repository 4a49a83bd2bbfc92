// The receives of a connection: what is posted, and posted again.
#include "librsocket/receive_requests.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "librsocket/work_requests.h"
#include "tests/fakes/fake_queue_pair.h"

namespace ringsock::rs {
namespace {

constexpr std::uint16_t kForData = 50;
constexpr unsigned kAll = kForData + ReceiveRequests::kControlReceives;
constexpr std::uint32_t kKey = 7;

TEST(ReceiveRequests, PostsAReceiveForEachCreditAndSomeForControlMessages) {
  fakes::FakeQueuePair pair;
  verbs::RcExtensions rc;
  ReceiveRequests receives(kForData, false);
  ASSERT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
  ASSERT_EQ(pair.received.size(), kAll);
  EXPECT_EQ(receives.receives(), kAll);
  EXPECT_EQ(receives.word_bytes(), 0u);
  for (const auto& one : pair.received) EXPECT_EQ(one.bytes, 0u);
}

/// A device that takes receives by their number.
class Counting : public verbs::RcExtensions {
 public:
  int post_counted(ibv_qp& /*qp*/, std::uint64_t wr_id, std::uint32_t count) override {
    id = wr_id;
    posted += count;
    return refuses;
  }
  std::uint64_t id = 0;
  std::uint32_t posted = 0;
  int refuses = 0;
};

TEST(ReceiveRequests, PostsAllByTheirNumberWhereTheDeviceTakesThat) {
  fakes::FakeQueuePair pair;
  Counting rc;
  ReceiveRequests receives(kForData, false);
  ASSERT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
  EXPECT_EQ(rc.posted, kAll);
  EXPECT_EQ(rc.id, kReceiveId);
  EXPECT_TRUE(pair.received.empty());
  receives.note_used(kReceiveId);
  EXPECT_TRUE(receives.post_owed());
  EXPECT_EQ(pair.received.size(), 1u);
}

TEST(ReceiveRequests, ADeviceThatRefusesThemIsNoConnection) {
  fakes::FakeQueuePair pair;
  Counting rc;
  rc.refuses = ENOMEM;
  EXPECT_EQ(ReceiveRequests(kForData, false).begin(rc, pair.qp(), {}, 0).error().code, ENOMEM);
}

TEST(ReceiveRequests, PostsUsedReceivesAgainAllAtOnce) {
  fakes::FakeQueuePair pair;
  verbs::RcExtensions rc;
  ReceiveRequests receives(kForData, false);
  ASSERT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
  pair.received.clear();

  for (unsigned used = 0; used < ReceiveRequests::kBatch; ++used) {
    ASSERT_TRUE(receives.has_room_for(1));
    receives.note_used(kReceiveId);
  }
  EXPECT_FALSE(receives.has_room_for(1));
  EXPECT_TRUE(pair.received.empty());

  EXPECT_TRUE(receives.post_owed());
  EXPECT_EQ(pair.received.size(), ReceiveRequests::kBatch);
  EXPECT_TRUE(receives.has_room_for(ReceiveRequests::kBatch));
  EXPECT_TRUE(receives.post_owed());
  EXPECT_EQ(pair.received.size(), ReceiveRequests::kBatch);
}

TEST(ReceiveRequests, AControlMessageIsForgottenWhenItsReceiveIsPostedAgain) {
  fakes::FakeQueuePair pair;
  verbs::RcExtensions rc;
  ReceiveRequests receives(kForData, false);
  ASSERT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
  receives.note_used(kReceiveId);
  receives.note_control();
  EXPECT_TRUE(receives.has_control());
  EXPECT_TRUE(receives.post_owed());
  EXPECT_FALSE(receives.has_control());
}

TEST(ReceiveRequests, SaysThatTheQueuePairTakesNoMore) {
  fakes::FakeQueuePair pair;
  verbs::RcExtensions rc;
  ReceiveRequests receives(kForData, false);
  ASSERT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
  receives.note_used(kReceiveId);
  pair.refuses = EINVAL;
  EXPECT_FALSE(receives.post_owed());
}

TEST(ReceiveRequests, WordsThatTravelBySendComeIntoBuffersOfTheirOwn) {
  fakes::FakeQueuePair pair;
  verbs::RcExtensions rc;
  ReceiveRequests receives(kForData, true);
  std::vector<std::byte> words(receives.word_bytes());
  ASSERT_EQ(words.size(), kAll * sizeof(std::uint32_t));
  ASSERT_TRUE(receives.begin(rc, pair.qp(), words, kKey));
  ASSERT_EQ(pair.received.size(), kAll);
  const auto fifth = pair.received[5];
  EXPECT_EQ(fifth.bytes, sizeof(std::uint32_t));

  const std::uint32_t word = 0x1234;
  std::memcpy(reinterpret_cast<void*>(fifth.address), &word, sizeof word);
  EXPECT_EQ(receives.word(fifth.id), word);

  // The same buffer is posted again.
  pair.received.clear();
  receives.note_used(fifth.id);
  ASSERT_TRUE(receives.post_owed());
  ASSERT_EQ(pair.received.size(), 1u);
  EXPECT_EQ(pair.received[0].id, fifth.id);
  EXPECT_EQ(pair.received[0].address, fifth.address);
}

}  // namespace
}  // namespace ringsock::rs
