// Both halves of the flow control against each other: what one takes, the other must count.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "core/engine/stream/receive_window.h"
#include "core/engine/stream/send_window.h"

namespace ringsock::engine {
namespace {

/// One direction of a connection: a sender and a receiver joined by a wire that keeps order.
class Direction {
 public:
  Direction(std::uint32_t ring, std::uint16_t queue) : receiver(ring, queue), memory_(ring) {
    EXPECT_TRUE(sender.reset({0, 1, receiver.first_bytes()}, queue));
  }
  /// With a window that grows from `used` bytes.
  Direction(std::uint32_t ring, std::uint16_t queue, std::uint32_t used) : receiver(ring, queue, used), memory_(ring) {
    EXPECT_TRUE(sender.reset({0, 1, receiver.first_bytes()}, queue, SendWindow::FirstBuffer::whole));
  }

  /// Sends one message of up to `wanted` bytes. Bytes sent; 0 when the window is shut.
  std::uint32_t send(std::uint32_t wanted) {
    if (!sender.can_send()) return 0;
    const auto placement = sender.take(wanted);
    for (std::uint32_t i = 0; i < placement.length; ++i) memory_.at(placement.addr + i) = value_of(sent_++);
    last_place_ = placement.addr + placement.length;
    in_flight_.push_back(placement.length);
    return placement.length;
  }
  /// The place behind the last byte that was sent.
  [[nodiscard]] std::uint64_t last_place() const { return last_place_; }
  /// Delivers everything in flight.
  void deliver() {
    for (; !in_flight_.empty(); in_flight_.pop_front()) ASSERT_TRUE(receiver.arrived(in_flight_.front()));
  }
  /// Reads up to `wanted` bytes and makes the announcements that are due.
  std::uint64_t read(std::uint64_t wanted) {
    const std::uint64_t bytes = std::min(wanted, receiver.readable());
    for (std::uint64_t done = 0; done < bytes;) {
      const auto span = receiver.peek();
      const auto step = std::min<std::uint64_t>(span.length, bytes - done);
      // Where the sender writes is where the receiver reads, and nothing is overwritten before it was read.
      for (std::uint64_t i = 0; i < step; ++i) EXPECT_EQ(memory_.at(span.offset + i), value_of(received_++));
      receiver.consume(step);
      done += step;
    }
    announce();
    return bytes;
  }
  void announce() {
    while (const auto due = receiver.due()) {
      sender.set_limit(due->limit);
      if (due->has_buffer) {
        ASSERT_TRUE(sender.add_buffer({due->offset, 1, due->length}));
      }
      receiver.announced(*due);
    }
  }

  SendWindow sender;
  ReceiveWindow receiver;

 private:
  static std::uint8_t value_of(std::uint64_t position) { return static_cast<std::uint8_t>(position % 251); }

  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t last_place_ = 0;
  std::vector<std::uint8_t> memory_;
  std::deque<std::uint32_t> in_flight_;
};

TEST(StreamCredits, SenderStallsWhenTheyRunOutAndGoesOnWhenThePeerReads) {
  Direction link(1 << 16, 2);
  link.announce();
  EXPECT_EQ(link.send(1), 1u);
  EXPECT_EQ(link.send(1), 1u);
  EXPECT_EQ(link.send(1), 0u);
  link.deliver();
  EXPECT_EQ(link.read(1), 1u);
  EXPECT_EQ(link.send(1), 1u);
}

TEST(StreamCredits, SenderStallsWhenTheRingIsFullAndGoesOnWhenHalfIsFree) {
  Direction link(100, 1000);
  link.announce();
  EXPECT_EQ(link.send(200), 50u);
  EXPECT_EQ(link.send(200), 50u);
  EXPECT_EQ(link.send(200), 0u);
  link.deliver();
  link.read(49);
  EXPECT_EQ(link.send(200), 0u);
  link.read(1);
  EXPECT_EQ(link.send(200), 50u);
}

class StreamCreditsFrom : public ::testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(UsedBytes, StreamCreditsFrom, ::testing::Values(0, 2, 7, 64, 1000, UINT32_MAX));

TEST_P(StreamCreditsFrom, NoSequenceOfSizesStallsOrOverrunsTheConnection) {
  for (const std::uint32_t ring : {2u, 3u, 100u, 4096u}) {
    for (const std::uint16_t queue : std::initializer_list<std::uint16_t>{1, 2, 3, 16, 384}) {
      Direction link = GetParam() == 0 ? Direction(ring, queue) : Direction(ring, queue, GetParam());
      link.announce();
      std::mt19937 engine(ring * 1000 + queue);
      const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
      std::uint64_t sent = 0;
      std::uint64_t received = 0;
      for (int round = 0; round < 20000; ++round) {
        if (random() % 2 == 0) sent += link.send(1 + random() % (ring + 1));
        if (random() % 2 == 0) link.deliver();
        if (random() % 2 == 0) received += link.read(1 + random() % (ring + 1));
      }
      // Whatever state that left: after reading all there is, one more byte gets through.
      link.deliver();
      while (const auto bytes = link.read(ring)) received += bytes;
      EXPECT_EQ(sent, received);
      EXPECT_TRUE(link.sender.is_writable()) << "a peer that has read everything has announced so much";
      EXPECT_GT(link.send(1), 0u) << "ring " << ring << " queue " << queue;
    }
  }
}

TEST(StreamCredits, SmallMessagesStayInTheFirstPartOfTheRing) {
  Direction link(131072, 384, 8000);
  link.announce();
  std::uint64_t farthest = 0;
  for (int message = 0; message < 10'000; ++message) {
    ASSERT_EQ(link.send(40), 40U) << "not cut by the end of a buffer, which lies at a multiple of 40";
    link.deliver();
    link.read(131072);
    farthest = std::max(farthest, link.last_place());
  }
  EXPECT_EQ(farthest, 8000U);
}

TEST(StreamCredits, APeerOfLargeMessagesSoonHasTheWholeRing) {
  Direction link(131072, 384, 8192);
  link.announce();
  int rounds = 0;
  for (std::uint64_t passed = 0; passed < 65536; ++rounds) {
    passed = 0;
    while (const std::uint32_t bytes = link.send(16384)) passed += bytes;
    link.deliver();
    link.read(131072);
  }
  EXPECT_LE(rounds, 4);
}

TEST(StreamCredits, AReaderThatDoesNotReadGetsAllThatTheRingHolds) {
  Direction link(131072, 384, 8192);
  std::uint64_t passed = 0;
  for (int look = 0; look < 10; ++look) {
    link.announce();
    while (const std::uint32_t bytes = link.send(1024)) passed += bytes;
    link.deliver();
  }
  EXPECT_EQ(passed, 131072U);
  EXPECT_EQ(link.read(131072), 131072U);
}

TEST(StreamCredits, AReaderThatStoppedInTheMiddleGetsAtLeastHalfTheRing) {
  for (std::uint32_t before = 1; before < 40'000; before += 977) {
    Direction link(131072, 384, 8192);
    for (std::uint64_t left = before; left > 0;) {
      link.announce();
      left -= link.send(static_cast<std::uint32_t>(std::min<std::uint64_t>(left, 100)));
      link.deliver();
      link.read(50);
    }
    for (int look = 0; look < 10; ++look) {
      link.announce();
      while (link.send(1024) != 0) {
      }
      link.deliver();
    }
    EXPECT_GE(link.receiver.readable(), 65536U) << before;
    EXPECT_TRUE(link.receiver.is_half_full());
  }
}

}  // namespace
}  // namespace ringsock::engine
