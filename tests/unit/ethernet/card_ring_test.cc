// A ring of a network card that drops, delays, reorders, and runs out.
#include "core/ethernet/card_ring.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/packet/packet_queue_pair.h"
#include "core/ethernet/interface.h"
#include "core/wire/frame_parse.h"
#include "tests/fakes/fake_card.h"
#include "tests/support/packets.h"
#include "tests/unit/ethernet/noting_sink.h"

namespace ringsock::ethernet {
namespace {

using support::packet_bytes;

const SocketAddress kHere = SocketAddress::v4(0x0a000001, 4000);
const SocketAddress kPeer = SocketAddress::v4(0x0a000002, 5000);
constexpr unsigned kReceives = 32;

class CardRingTest : public testing::Test {
 protected:
  /// @param prepare  may change the card before the ring is there
  void open(RingSettings settings = {.receive_entries = kReceives, .send_entries = 8, .sends_per_completion = 4},
            bool does_checksums = true, std::size_t most_buffers = 200000) {
    auto card = std::move(made_);
    net::Link link;
    link.index = 7;
    link.mtu = 1500;
    link.mac = {2, 0, 0, 0, 0, 1};
    auto interface = Interface::by_card({.device = std::move(card), .does_checksums = does_checksums}, link,
                                        {.most_buffers = most_buffers});
    ASSERT_TRUE(interface);
    interface_ = *std::move(interface);
    auto ring = Ring::create(interface_, settings, std::make_unique<PrivateRingCounters>());
    ASSERT_TRUE(ring) << ring.error().where;
    ring_ = *std::move(ring);
    ASSERT_TRUE(ring_->attach({.protocol = IPPROTO_UDP, .destination = kHere}, sink_));
  }
  void TearDown() override {
    if (!ring_) return;
    ring_->detach({.protocol = IPPROTO_UDP, .destination = kHere}, sink_);
    sink_.arrivals.clear();
    ring_.reset();
    if (interface_) {
      EXPECT_EQ(interface_->pool().statistics().in_use, 0U) << "all buffers have come back";
    }
  }

  static std::vector<std::byte> datagram(const std::string& payload, std::uint8_t protocol = IPPROTO_UDP) {
    return packet_bytes(protocol, kPeer, kHere, payload);
  }
  void poll_all() {
    while (ring_->poll(nullptr) == Ring::Look::some) {
    }
  }
  int send(const std::string& payload) {
    // As a destination writes headers: the sum of the pseudo header in place of the checksum.
    auto frame = packet_bytes(IPPROTO_UDP, kHere, kPeer, payload);
    const auto layout = wire::parse_received(frame);
    const wire::Be16 partial = wire::pseudo_header(frame, *layout, layout->transport_bytes()).folded();
    std::memcpy(frame.data() + layout->transport + layout->checksum_offset(), &partial, sizeof partial);
    soft::DatagramRoom room;
    std::memcpy(room.headers().data(), frame.data(), layout->payload);
    std::string copy = payload;
    const iovec part{copy.data(), copy.size()};
    return ring_->send(room, layout->payload, {&part, 1});
  }
  std::string payload_on_line(std::size_t index) {
    const auto& frame = card_.line.at(index).frame;
    const auto layout = wire::parse_headers(frame, frame.size());
    EXPECT_TRUE(layout);
    return {reinterpret_cast<const char*>(frame.data()) + layout->payload, layout->payload_bytes};
  }

  std::unique_ptr<fakes::FakeCard> made_ = std::make_unique<fakes::FakeCard>();
  fakes::FakeCard& card_ = *made_;
  NotingSink sink_;
  std::shared_ptr<Interface> interface_;
  std::shared_ptr<Ring> ring_;
};

TEST_F(CardRingTest, PostsReceivesAndDeliversInOrder) {
  open();
  EXPECT_EQ(card_.posted_receives(), kReceives);
  std::vector<std::string> sent;
  for (int i = 0; i < 100; ++i) {
    sent.push_back("datagram " + std::to_string(i));
    ASSERT_TRUE(card_.receive(datagram(sent.back()))) << "receives are posted anew";
    poll_all();
  }
  EXPECT_EQ(sink_.seen, sent);
  EXPECT_EQ(ring_->poll(nullptr), Ring::Look::nothing);
}

TEST_F(CardRingTest, AFloodLosesWhatHasNoReceiveAndGoesOn) {
  open();
  unsigned taken = 0;
  while (card_.receive(datagram("flood"))) ++taken;
  EXPECT_EQ(taken, kReceives);
  poll_all();
  EXPECT_EQ(sink_.seen.size(), kReceives);
  ASSERT_TRUE(card_.receive(datagram("after")));
  poll_all();
  EXPECT_EQ(sink_.seen.back(), "after");
}

TEST_F(CardRingTest, CompletionsInAnotherOrderKeepTheirBuffers) {
  open();
  for (const char* text : {"one", "two", "three"}) ASSERT_TRUE(card_.receive(datagram(text)));
  card_.reorder_received();
  poll_all();
  EXPECT_EQ(sink_.seen, (std::vector<std::string>{"three", "two", "one"}));
}

TEST_F(CardRingTest, WrongChecksumsAreDroppedUnlessTheCardHasLooked) {
  open();
  auto wrong = datagram("wrong");
  wrong.back() ^= std::byte{1};
  ASSERT_TRUE(card_.receive(wrong));
  poll_all();
  EXPECT_TRUE(sink_.seen.empty());
  EXPECT_EQ(card_.posted_receives(), kReceives) << "its receive is posted anew";

  ASSERT_TRUE(card_.receive(wrong, IBV_WC_IP_CSUM_OK));
  poll_all();
  EXPECT_EQ(sink_.seen.size(), 1U);
}

TEST_F(CardRingTest, TheWordOfACardThatDoesNoChecksumsCountsNothing) {
  open({.receive_entries = kReceives, .send_entries = 8}, false);
  auto wrong = datagram("wrong");
  wrong.back() ^= std::byte{1};
  ASSERT_TRUE(card_.receive(wrong, IBV_WC_IP_CSUM_OK));
  wrong = datagram("wrong header");
  wrong[sizeof(wire::EthernetHeader) + offsetof(wire::Ipv4Header, ttl)] ^= std::byte{1};
  ASSERT_TRUE(card_.receive(wrong, IBV_WC_IP_CSUM_OK));
  ASSERT_TRUE(card_.receive(datagram("right")));
  poll_all();
  EXPECT_EQ(sink_.seen, std::vector<std::string>{"right"});
}

TEST_F(CardRingTest, NonsenseIsDroppedAndItsReceivePostedAnew) {
  open();
  const auto good = datagram("payload");
  for (std::size_t bytes = 0; bytes < good.size(); bytes += 3) {
    ASSERT_TRUE(card_.receive(std::span(good).first(bytes), IBV_WC_IP_CSUM_OK));
    poll_all();
  }
  ASSERT_TRUE(card_.receive(std::vector<std::byte>(2000)));  // longer than its receive
  poll_all();
  EXPECT_TRUE(sink_.seen.empty());
  ASSERT_TRUE(card_.receive(good));
  poll_all();
  EXPECT_EQ(sink_.seen.size(), 1U);
}

TEST_F(CardRingTest, AReceiveThatFailedIsPostedAnew) {
  open();
  for (unsigned i = 0; i < 2 * kReceives; ++i) {
    ASSERT_TRUE(card_.receive(std::vector<std::byte>(2000))) << "longer than a receive: the card reports an error";
    poll_all();
    ASSERT_EQ(card_.posted_receives(), kReceives);
  }
  ASSERT_TRUE(card_.receive(datagram("after")));
  poll_all();
  EXPECT_EQ(sink_.seen, std::vector<std::string>{"after"});
}

TEST_F(CardRingTest, ACardWithFewerPlacesThanAskedForLosesMoreAndGoesOn) {
  card_.most_receives = 4;
  open();
  EXPECT_EQ(card_.posted_receives(), 4U);
  for (int round = 0; round < 10; ++round) {
    while (card_.receive(datagram("flood"))) {
    }
    poll_all();
  }
  EXPECT_EQ(sink_.seen.size(), 40U);
}

TEST_F(CardRingTest, TcpGoesToItsSink) {
  open();
  NotingSink tcp;
  ASSERT_TRUE(card_.receive(datagram("nobody's", IPPROTO_TCP)));
  poll_all();
  ASSERT_TRUE(ring_->attach({.protocol = IPPROTO_TCP, .destination = kHere, .source = kPeer}, tcp));
  EXPECT_EQ(card_.flows, 2);
  ASSERT_TRUE(card_.receive(datagram("a segment", IPPROTO_TCP)));
  ASSERT_TRUE(card_.receive(datagram("a datagram")));
  poll_all();
  EXPECT_EQ(tcp.seen, std::vector<std::string>{"a segment"});
  EXPECT_EQ(sink_.seen, std::vector<std::string>{"a datagram"});
  ring_->detach({.protocol = IPPROTO_TCP, .destination = kHere, .source = kPeer}, tcp);
  EXPECT_EQ(card_.flows, 1);
}

TEST_F(CardRingTest, ARuleMoreThanTheCardHasIsRefused) {
  card_.most_flows = 1;
  open();
  NotingSink other;
  const auto refused = ring_->attach({.protocol = IPPROTO_UDP, .destination = kPeer}, other);
  EXPECT_EQ(refused.error().code, ENOSPC);
}

TEST_F(CardRingTest, WithoutBuffersTheOldestReceiveServesAgain) {
  // The pool has one slab: some hundred buffers. The sink keeps all that it gets.
  open({.receive_entries = kReceives, .send_entries = 8}, true, 1);
  std::size_t came = 0;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(card_.receive(datagram("kept"))) << "the card never runs dry";
    ++came;
    poll_all();
  }
  EXPECT_LT(sink_.arrivals.size(), came);
  EXPECT_GT(sink_.arrivals.size(), 100U);
  sink_.arrivals.clear();
  const std::size_t before = sink_.seen.size();
  ASSERT_TRUE(card_.receive(datagram("there is room again")));
  poll_all();
  EXPECT_EQ(sink_.seen.size(), before + 1);
}

TEST_F(CardRingTest, SmallFramesGoInlineAndLongOnesAreCopied) {
  open();
  const std::string text(1000, 'l');
  ASSERT_EQ(send("short"), 0);
  ASSERT_EQ(send(text), 0);
  ASSERT_EQ(card_.line.size(), 2U);
  EXPECT_NE(card_.line[0].flags & IBV_SEND_INLINE, 0U);
  EXPECT_NE(card_.line[0].flags & IBV_SEND_IP_CSUM, 0U);
  EXPECT_EQ(card_.line[1].flags & IBV_SEND_INLINE, 0U);
  EXPECT_EQ(payload_on_line(0), "short");
  EXPECT_EQ(payload_on_line(1), text);
  EXPECT_EQ(card_.wrong_keys, 0);
  EXPECT_EQ(send(std::string(4000, 'x')), EMSGSIZE);
}

TEST_F(CardRingTest, ChecksumsAreFilledInForACardThatDoesNot) {
  open({.receive_entries = kReceives, .send_entries = 8}, false);
  ASSERT_EQ(send("by software"), 0);
  ASSERT_EQ(card_.line.size(), 1U);
  EXPECT_EQ(card_.line[0].flags & IBV_SEND_IP_CSUM, 0U);
  EXPECT_TRUE(wire::has_right_checksums(card_.line[0].frame));
  EXPECT_EQ(card_.wrong_keys, 0);
}

TEST_F(CardRingTest, ADelayedCopyStaysUntilItHasLeft) {
  open();
  card_.delays_sends = true;
  std::vector<std::string> sent;
  for (int i = 0; i < 8; ++i) {
    sent.emplace_back(500 + static_cast<std::size_t>(i), static_cast<char>('a' + i));
    ASSERT_EQ(send(sent.back()), 0) << i;
  }
  EXPECT_EQ(send("one too many"), ENOMEM) << "all places are taken";
  card_.send_all();
  for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(payload_on_line(i), sent[i]);
  EXPECT_EQ(send("there is room again"), 0);
}

TEST_F(CardRingTest, AFullQueueIsToldAndNothingIsLost) {
  open();
  card_.delays_sends = true;
  card_.most_sends = 3;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(send("x"), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(send("refused"), ENOMEM);
  card_.delays_sends = false;
  card_.send_all();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(send("on it goes"), 0) << i;
  EXPECT_EQ(card_.line.size(), 103U);
}

TEST_F(CardRingTest, TheEndGivesAllBuffersBack) {
  open();
  card_.delays_sends = true;
  ASSERT_EQ(send(std::string(800, 'u')), 0);       // under way
  ASSERT_TRUE(card_.receive(datagram("unread")));  // completed, and nobody has polled
  // TearDown() looks.
}

TEST_F(CardRingTest, AWakeUpArmsAgainForOthers) {
  open();
  ring_->arm();
  EXPECT_EQ(card_.armed, 1);
  ASSERT_TRUE(card_.receive(datagram("awake")));
  ring_->woken();
  EXPECT_EQ(card_.armed, 2);
  EXPECT_EQ(sink_.seen, std::vector<std::string>{"awake"});
}

TEST_F(CardRingTest, LeavingDeliversWhatTheRingHas) {
  open();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(card_.receive(datagram("before")));
  ring_->detach({.protocol = IPPROTO_UDP, .destination = kHere}, sink_);
  EXPECT_EQ(sink_.seen.size(), 20U);
  EXPECT_EQ(card_.flows, 0);
}

}  // namespace
}  // namespace ringsock::ethernet
