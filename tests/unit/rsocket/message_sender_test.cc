// The sending side of a connection: what becomes a message.
#include "librsocket/message_sender.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_queue_pair.h"

namespace ringsock::rs {
namespace {

constexpr std::uint64_t kPeerAddress = 0x10000;
constexpr std::uint32_t kPeerKey = 5;

/// A sender on a device that takes everything inline. Its peer has a buffer of `room` bytes, and has granted `credits`.
struct Sender {
  explicit Sender(std::uint32_t room = 1000, std::uint16_t credits = 10) {
    sender.core().qp = &pair.qp();
    ibv_qp_cap capacity{};
    capacity.max_send_sge = 4;
    sender.begin(capacity, true, {});
    started = sender.start({kPeerAddress, kPeerKey, room}, credits);
    EXPECT_TRUE(started);
  }
  bool send_at_once(const std::string& bytes) { return sender.send_at_once(bytes.data(), bytes.size()); }
  std::size_t send(std::string bytes) {
    IoCursor data(bytes.data(), bytes.size());
    return sender.send(data);
  }
  static QueueSettings settings() {
    QueueSettings settings;
    settings.send_queue = 20;
    settings.inline_bytes = 4096;
    return settings;
  }

  fakes::FakeDevice device;
  fakes::FakeQueuePair pair;
  MessageSender sender{device, settings()};
  Status started = ok();
};

TEST(MessageSender, PutsMessagesBehindEachOtherIntoThePeersBuffer) {
  Sender alice;
  ASSERT_TRUE(alice.send_at_once("abc"));
  ASSERT_EQ(alice.send("defg"), 4u);
  ASSERT_EQ(alice.pair.sent.size(), 2u);
  EXPECT_EQ(alice.pair.sent[0].address, kPeerAddress);
  EXPECT_EQ(alice.pair.sent[0].payload, "abc");
  EXPECT_EQ(alice.pair.sent[0].immediate, word_in_network_order({wire::RsOpcode::data, 3}));
  EXPECT_EQ(alice.pair.sent[1].address, kPeerAddress + 3);
  EXPECT_EQ(alice.pair.sent[1].key, kPeerKey);
}

TEST(MessageSender, StopsWithoutCreditsAndGoesOnWithNewOnes) {
  Sender alice(1000, 2);
  ASSERT_TRUE(alice.send_at_once("a"));
  ASSERT_TRUE(alice.send_at_once("b"));
  EXPECT_FALSE(alice.send_at_once("c"));
  EXPECT_EQ(alice.send("c"), 0u);
  EXPECT_FALSE(alice.sender.can_send());

  alice.sender.set_credits(3);

  EXPECT_TRUE(alice.send_at_once("c"));
}

TEST(MessageSender, SendsAsMuchAsThePeersBuffersTake) {
  Sender alice(5);
  EXPECT_FALSE(alice.send_at_once("1234567"));
  EXPECT_EQ(alice.send("1234567"), 5u);
  ASSERT_TRUE(alice.sender.add_buffer({kPeerAddress + 100, kPeerKey, 5}));
  EXPECT_EQ(alice.send("67"), 2u);
  EXPECT_EQ(alice.pair.sent.back().address, kPeerAddress + 100);
}

TEST(MessageSender, HoldsEverythingBackUntilThePeerIsReady) {
  Sender alice;
  alice.sender.requests().hold();
  ASSERT_TRUE(alice.sender.start({kPeerAddress, kPeerKey, 1000}, 10));
  EXPECT_FALSE(alice.send_at_once("early"));
  EXPECT_TRUE(alice.pair.sent.empty());

  alice.sender.let_go_of_hold();

  EXPECT_TRUE(alice.send_at_once("early"));
}

TEST(MessageSender, SendsNothingWhileSuspended) {
  Sender alice;
  alice.sender.core().state.store(ConnectionCore::kSuspended);
  EXPECT_FALSE(alice.send_at_once("a"));
  EXPECT_EQ(alice.send("a"), 0u);
  EXPECT_TRUE(alice.pair.sent.empty());
}

TEST(MessageSender, ADirectWriteIsUnderWayUntilItCompletes) {
  Sender alice;
  const std::string bytes = "direct";
  ASSERT_EQ(alice.sender.write_direct(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), 0x9000, 8),
            bytes.size());
  ASSERT_EQ(alice.pair.sent.size(), 1u);
  EXPECT_EQ(alice.pair.sent[0].opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(alice.pair.sent[0].address, 0x9000u);
  EXPECT_TRUE(alice.sender.has_direct_under_way());
  alice.sender.requests().finish(alice.pair.sent[0].id);
  EXPECT_FALSE(alice.sender.has_direct_under_way());
}

}  // namespace
}  // namespace ringsock::rs
