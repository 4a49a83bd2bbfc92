// The receiving side of a connection: what is copied out of the ring, and what the peer is told of it.
#include "librsocket/message_receiver.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/rsocket/connection_parts.h"

namespace ringsock::rs {
namespace {

constexpr std::uint32_t kRingBytes = 100;
constexpr std::uint32_t kRingKey = 9;

/// A receiver with a ring of two halves, whose peer has been told of the first one.
struct Receiver : ConnectionParts {
  Receiver() : ConnectionParts(settings(), terms_of_peer()) {
    verbs::RcExtensions rc;
    EXPECT_TRUE(receives.begin(rc, pair.qp(), {}, 0));
    receiver.begin(ring.data(), kRingKey);
    EXPECT_EQ(receiver.first_bytes(), kRingBytes / 2);
  }
  /// A message comes, and its bytes lie behind those of the last one.
  void arrive(const std::string& bytes) {
    std::memcpy(ring.data() + end, bytes.data(), bytes.size());
    end += bytes.size();
    ASSERT_TRUE(receiver.arrived(static_cast<std::uint32_t>(bytes.size())));
  }
  std::string receive(std::size_t most) {
    std::string out(most, '?');
    out.resize(receiver.receive(out.data(), most));
    return out;
  }
  std::string peek(std::size_t most) {
    std::string out(most, '?');
    IoCursor cursor(out.data(), most);
    out.resize(receiver.receive(cursor, true));
    return out;
  }
  static QueueSettings settings() {
    QueueSettings settings;
    settings.receive_ring = kRingBytes;
    settings.receive_queue = 16;
    return settings;
  }

  ReceiveRequests receives{16, false};
  MessageReceiver receiver{core, sends, receives, tables};
  std::vector<std::byte> ring = std::vector<std::byte>(kRingBytes);
  std::size_t end = 0;
};

TEST(MessageReceiver, ReadsAcrossMessages) {
  Receiver bob;
  bob.arrive("abc");
  bob.arrive("defg");
  EXPECT_EQ(bob.receiver.readable(), 7u);
  EXPECT_EQ(bob.peek(20), "abcdefg");
  EXPECT_EQ(bob.receive(5), "abcde");
  EXPECT_EQ(bob.receive(20), "fg");
  EXPECT_EQ(bob.receive(20), "");
}

TEST(MessageReceiver, AnnouncesTheOtherHalfOfTheRingAtOnceAndTheFirstWhenItIsRead) {
  Receiver bob;
  ASSERT_TRUE(bob.receiver.is_announcement_due());
  ASSERT_TRUE(bob.receiver.announce_if_due());
  ASSERT_EQ(bob.pair.sent.size(), 1u);
  wire::PeerSge buffer{};
  ASSERT_EQ(bob.pair.sent[0].payload.size(), sizeof buffer);
  std::memcpy(&buffer, bob.pair.sent[0].payload.data(), sizeof buffer);
  EXPECT_EQ(buffer.addr, address_of(bob.ring.data() + kRingBytes / 2));
  EXPECT_EQ(buffer.key, kRingKey);
  EXPECT_EQ(buffer.length, kRingBytes / 2);

  bob.arrive(std::string(kRingBytes / 2, 'x'));
  EXPECT_TRUE(bob.receiver.should_be_read());
  ASSERT_TRUE(bob.receiver.announce_if_due());
  EXPECT_EQ(bob.pair.sent.size(), 1u);

  bob.receive(kRingBytes / 2);
  ASSERT_TRUE(bob.receiver.announce_if_due());
  ASSERT_EQ(bob.pair.sent.size(), 2u);
  std::memcpy(&buffer, bob.pair.sent[1].payload.data(), sizeof buffer);
  EXPECT_EQ(buffer.addr, address_of(bob.ring.data()));
}

TEST(MessageReceiver, AnAnnouncementWaitsForAControlSlot) {
  Receiver bob;
  for (unsigned slot = 0; slot < SendRequests::kControlSlots; ++slot) ASSERT_TRUE(bob.sends.take_control_slot());
  EXPECT_FALSE(bob.receiver.announce_if_due());
  EXPECT_TRUE(bob.receiver.is_announcement_due());
  bob.sends.finish(kControlId | 1);
  EXPECT_TRUE(bob.receiver.announce_if_due());
  EXPECT_EQ(bob.pair.sent.size(), 1u);
}

TEST(MessageReceiver, UsedReceivesAreThereBeforeThePeerHasACreditForThem) {
  Receiver bob;
  bob.pair.received.clear();
  bob.receives.note_used(kReceiveId);
  ASSERT_TRUE(bob.receiver.announce_if_due());
  EXPECT_EQ(bob.pair.received.size(), 1u);
}

TEST(MessageReceiver, ASuspendedConnectionIsAnEmptyOne) {
  Receiver bob;
  bob.arrive("abc");
  bob.core.state.store(ConnectionCore::kSuspended);
  EXPECT_EQ(bob.receive(3), "");
  EXPECT_EQ(bob.peek(3), "");
  EXPECT_TRUE(bob.receiver.announce_if_due());
  EXPECT_TRUE(bob.pair.sent.empty());
  bob.core.state.store(0);
  EXPECT_EQ(bob.receive(3), "abc");
}

TEST(MessageReceiver, AQueuePairThatTakesNoMoreReceivesHasEnded) {
  Receiver bob;
  bob.receives.note_used(kReceiveId);
  bob.pair.refuses = EINVAL;
  EXPECT_TRUE(bob.receiver.post_owed_receives());
  EXPECT_EQ(bob.core.ends.failure(), ECONNRESET);
}

TEST(MessageReceiver, AfterAnEndARefusedReceiveIsNoNews) {
  Receiver bob;
  bob.core.ends.peer_left();
  bob.receives.note_used(kReceiveId);
  bob.pair.refuses = EINVAL;
  EXPECT_FALSE(bob.receiver.post_owed_receives());
  EXPECT_EQ(bob.core.ends.failure(), 0);
}

}  // namespace
}  // namespace ringsock::rs
