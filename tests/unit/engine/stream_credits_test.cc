// Both halves of the flow control against each other: what one takes, the other must count.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "core/engine/stream/receive_window.h"
#include "core/engine/stream/send_window.h"

namespace ringsock::engine {
namespace {

/// One direction of a connection: a sender and a receiver joined by a wire that keeps order.
class Direction {
 public:
  Direction(std::uint32_t ring, std::uint16_t queue) : receiver(ring, queue) {
    EXPECT_TRUE(sender.reset({0, 1, receiver.half()}, queue));
  }

  /// Sends one message of up to `wanted` bytes. Bytes sent; 0 when the window is shut.
  std::uint32_t send(std::uint32_t wanted) {
    if (!sender.can_send()) return 0;
    const auto placement = sender.take(wanted);
    // Where the sender writes is where the receiver will read: positions are counted around the same ring.
    EXPECT_EQ(placement.addr, (sent_ % (2 * std::uint64_t{receiver.half()})));
    sent_ += placement.length;
    in_flight_.push_back(placement.length);
    return placement.length;
  }
  /// Delivers everything in flight.
  void deliver() {
    for (; !in_flight_.empty(); in_flight_.pop_front()) ASSERT_TRUE(receiver.arrived(in_flight_.front()));
  }
  /// Reads up to `wanted` bytes and makes the announcements that are due.
  std::uint64_t read(std::uint64_t wanted) {
    const std::uint64_t bytes = std::min(wanted, receiver.readable());
    receiver.consume(bytes);
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
  std::uint64_t sent_ = 0;
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

TEST(StreamCredits, NoSequenceOfSizesStallsOrOverrunsTheConnection) {
  for (const std::uint32_t ring : {2u, 3u, 100u, 4096u}) {
    for (const std::uint16_t queue : std::initializer_list<std::uint16_t>{1, 2, 3, 16, 384}) {
      Direction link(ring, queue);
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
      EXPECT_GT(link.send(1), 0u) << "ring " << ring << " queue " << queue;
    }
  }
}

}  // namespace
}  // namespace ringsock::engine
