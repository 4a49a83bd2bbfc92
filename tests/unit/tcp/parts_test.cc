// Parts of the TCP engine that packet stories show only from outside: HyStart++, CUBIC, rate reduction, TIME-WAIT.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "core/engine/tcp/byte_queue.h"
#include "core/engine/tcp/congestion.h"
#include "core/engine/tcp/connection.h"
#include "core/engine/tcp/options.h"
#include "core/engine/tcp/prr.h"
#include "core/engine/tcp/slow_start.h"

namespace ringsock::engine::tcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A sender whose round brings ten acknowledgements of a packet.
struct Sender {
  HyStart start;
  Seq una = 0, nxt = 10'000;
  std::uint32_t round(Nanos rtt) {
    std::uint32_t grown = 0;
    for (int i = 0; i < 10; ++i) {
      una += 1000;
      nxt += 1000;
      grown += start.grow(1000, rtt, una, nxt);
    }
    return grown;
  }
};

TEST(HyStart, ASteadyRoundTripDoublesTheWindow) {
  Sender sender;
  for (int round = 0; round < 20; ++round) EXPECT_EQ(sender.round(milliseconds(20)), 10'000u);
  EXPECT_FALSE(sender.start.ended());
}

TEST(HyStart, AGrowingRoundTripMakesItConservativeAndEndsItAfterFiveRounds) {
  Sender sender;
  (void)sender.round(milliseconds(20));
  (void)sender.round(milliseconds(20));
  (void)sender.round(milliseconds(25));  // 4 ms and more above: a queue builds up
  EXPECT_TRUE(sender.start.is_conservative());
  EXPECT_EQ(sender.round(milliseconds(25)), 2500u);
  EXPECT_FALSE(sender.start.ended());
  for (int round = 0; round < 5; ++round) (void)sender.round(milliseconds(25));
  EXPECT_TRUE(sender.start.ended());
}

TEST(HyStart, ADelayThatPassesLeadsBackToSlowStart) {
  Sender sender;
  (void)sender.round(milliseconds(20));
  (void)sender.round(milliseconds(20));
  (void)sender.round(milliseconds(30));
  EXPECT_TRUE(sender.start.is_conservative());
  (void)sender.round(milliseconds(20));
  EXPECT_FALSE(sender.start.is_conservative());
  EXPECT_EQ(sender.round(milliseconds(20)), 10'000u);
}

TEST(HyStart, FewSamplesProveNothing) {
  HyStart start;
  Seq una = 0;
  for (int round = 0; round < 10; ++round) {
    una += 50'000;
    EXPECT_EQ(start.grow(50'000, milliseconds(10 + 10 * round), una, una + 50'000), 50'000u);
  }
}

/// Acknowledges a window in each round trip.
void run(CongestionControl& control, CongestionWindow& window, Nanos& now, Nanos until, Nanos rtt) {
  while (now < until) {
    now += rtt;
    const std::uint32_t packets = window.cwnd / 1000;
    for (std::uint32_t i = 0; i < packets; ++i) control.avoid(window, 1000, 1000, rtt, now);
  }
}

TEST(Cubic, ComesBackToItsLastWindowAfterK) {
  auto cubic = make_congestion_control(Algorithm::cubic);
  CongestionWindow window{.cwnd = 100'000};
  window.cwnd = window.ssthresh = cubic->reduced(window, 1000);
  EXPECT_EQ(window.cwnd, 70'000u);
  Nanos now = seconds(1);
  run(*cubic, window, now, now + milliseconds(4200), milliseconds(100));  // K is 4.217 s
  EXPECT_NEAR(window.cwnd, 100'000, 3000);
  run(*cubic, window, now, now + milliseconds(4200), milliseconds(100));
  EXPECT_NEAR(window.cwnd, 130'000, 8000);
}

TEST(Cubic, IsNoSlowerThanRenoOnAShortPath) {
  auto cubic = make_congestion_control(Algorithm::cubic);
  CongestionWindow window{.cwnd = 100'000};
  window.cwnd = window.ssthresh = cubic->reduced(window, 1000);
  Nanos now = seconds(1);
  run(*cubic, window, now, now + seconds(1), milliseconds(10));
  EXPECT_GT(window.cwnd, 110'000u);
}

TEST(Cubic, APauseOfTheApplicationIsNoGrowth) {
  auto cubic = make_congestion_control(Algorithm::cubic);
  CongestionWindow window{.cwnd = 100'000};
  window.cwnd = window.ssthresh = cubic->reduced(window, 1000);
  Nanos now = seconds(1);
  run(*cubic, window, now, now + seconds(2), milliseconds(100));
  const std::uint32_t before = window.cwnd;
  now += seconds(60);
  run(*cubic, window, now, now + milliseconds(100), milliseconds(100));
  EXPECT_LT(window.cwnd, before + 5000);
}

TEST(Cubic, GivesWayFasterWhenItsWindowShrinks) {
  auto cubic = make_congestion_control(Algorithm::cubic);
  CongestionWindow window{.cwnd = 100'000};
  window.cwnd = cubic->reduced(window, 1000);
  window.cwnd = cubic->reduced(window, 1000);
  EXPECT_EQ(window.cwnd, 49'000u);
  Nanos now = seconds(1);
  run(*cubic, window, now, now + seconds(3), milliseconds(400));
  EXPECT_LT(window.cwnd, 63'000u);  // W_max is 59.5 segments, not 70
}

TEST(Cubic, AnUndoneEventIsForgotten) {
  auto cubic = make_congestion_control(Algorithm::cubic);
  CongestionWindow window{.cwnd = 100'000};
  (void)cubic->reduced(window, 1000);
  cubic->undo();
  window.cwnd = window.ssthresh = 100'000;
  Nanos now = seconds(1);
  run(*cubic, window, now, now + milliseconds(500), milliseconds(100));
  EXPECT_GE(window.cwnd, 100'000u);
}

TEST(RateReduction, SendsInProportionAboveTheTarget) {
  RateReduction prr;
  prr.begin(20'000);
  std::uint32_t in_flight = 19'000, sent = 0;
  for (int ack = 0; ack < 10; ++ack) {
    in_flight -= 1000;
    const std::uint32_t window = prr.window(1000, in_flight, 10'000, 1000, false);
    while (window - in_flight >= 1000 && window > in_flight) {
      prr.sent(1000);
      sent += 1000;
      in_flight += 1000;
    }
  }
  EXPECT_EQ(sent, 5000u);
}

TEST(RateReduction, TheFirstRepeatAlwaysLeaves) {
  RateReduction prr;
  prr.begin(20'000);
  EXPECT_EQ(prr.window(0, 19'000, 10'000, 1000, false), 20'000u);
}

TEST(RateReduction, BelowTheTargetItIsCarefulUntilTheLossesEnd) {
  RateReduction prr;
  prr.begin(20'000);
  (void)prr.window(1000, 5000, 10'000, 1000, false);
  prr.sent(1000);
  EXPECT_EQ(prr.window(1000, 5000, 10'000, 1000, false), 6000u);  // as much as was delivered
  prr.sent(1000);
  EXPECT_EQ(prr.window(1000, 5000, 10'000, 1000, true), 7000u);  // and a packet more
}

// -- what the application is told ---------------------------------------------------------------------

/// An established connection in the middle of a stream.
Established in_the_middle() {
  Established state;
  state.snd_una = state.snd_nxt = 1000;
  state.rcv_nxt = state.rcv_wup = 5000;
  state.snd_wnd = state.rcv_wnd = 65'536;
  state.mss = 1460;
  return state;
}
SegmentIn acknowledging(Seq ack) {
  return {.seq = 5000, .ack = ack, .window = 65'535, .flags = kAck, .options = {}, .payload = {}};
}

TEST(Room, AWriterWhoseBytesFitIsToldWhenThereIsMoreRoom) {
  Settings set;
  set.send_bytes = 4096;
  TcpConnection tcp(set);
  Nanos now = std::chrono::seconds(1);
  ASSERT_TRUE(tcp.begin(in_the_middle(), now));
  static_cast<void>(tcp.take_events());
  const std::vector<std::byte> bytes(tcp.room());
  ASSERT_EQ(*tcp.write(bytes, now), bytes.size());
  EXPECT_FALSE(tcp.is_writable());
  while (tcp.next_segment(now)) {
  }
  EXPECT_EQ(tcp.take_events() & kWritable, 0);
  now += std::chrono::milliseconds(1);
  tcp.segment(acknowledging(1000 + static_cast<Seq>(bytes.size())), now);
  EXPECT_TRUE(tcp.is_writable());
  EXPECT_NE(tcp.take_events() & kWritable, 0);
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string text_of(const ByteQueue& queue) {
  std::string out(queue.size(), '\0');
  queue.copy(0, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(ByteQueue, WhatIsPutInFrontIsReadFirst) {
  ByteQueue queue;
  queue.put_front(bytes_of("b"));
  queue.append(bytes_of("cd"));
  queue.put_front(bytes_of("aa"));
  queue.put_front({});
  EXPECT_EQ(text_of(queue), "aabcd");
  queue.drop_front(3);
  EXPECT_EQ(text_of(queue), "cd");
  queue.drop_front(2);
  EXPECT_TRUE(queue.empty());
  queue.append(bytes_of("again"));
  EXPECT_EQ(text_of(queue), "again");
}

TEST(ByteQueue, APieceThatWasTakenOutCanBePutBack) {
  ByteQueue queue;
  queue.append(bytes_of("first second"));
  const auto piece = queue.take_front(6);
  queue.append(bytes_of(" third"));
  queue.put_front(piece.bytes);
  EXPECT_EQ(text_of(queue), "first second third");
}

}  // namespace
}  // namespace ringsock::engine::tcp
