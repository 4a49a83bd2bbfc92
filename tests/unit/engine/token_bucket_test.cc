// A sender with a rate, in virtual time.
#include "core/engine/pacing/token_bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ringsock::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Nanos kStart = seconds(1000);
constexpr std::uint64_t kMegabyte = 1'000'000;

/// A program that always has something to send, and waits for its turn.
struct BusySender {
  TokenBucket bucket;
  Nanos now = kStart;
  Nanos wakes_late{};  ///< after each wait

  /// Returns the bytes that it has sent after `duration`.
  std::uint64_t send_for(Nanos duration, std::size_t datagram) {
    const Nanos end = now + duration;
    std::uint64_t sent = 0;
    while (now < end) {
      if (bucket.take(datagram, now)) {
        sent += datagram;
      } else {
        now = bucket.ready_at(datagram, now) + wakes_late;
      }
    }
    return sent;
  }
  /// Returns the bytes that leave at once.
  std::uint64_t burst(std::size_t datagram) {
    std::uint64_t sent = 0;
    while (bucket.take(datagram, now)) sent += datagram;
    return sent;
  }
};

BusySender sender(std::uint64_t rate, std::uint64_t burst, Nanos wakes_late = {}, std::uint64_t late = 0) {
  const TokenBucket::Limits limits{.bytes_per_second = rate, .burst_bytes = burst, .late_bytes = late};
  return {.bucket = TokenBucket(limits, kStart), .wakes_late = wakes_late};
}

TEST(TokenBucket, ABurstLeavesAtOnceAndTheNextDatagramWaits) {
  BusySender alice = sender(kMegabyte, 10'000);
  EXPECT_EQ(alice.burst(1000), 10'000U);
  EXPECT_EQ(alice.bucket.ready_at(1000, alice.now), kStart + milliseconds(1));
  alice.now = kStart + milliseconds(1) - Nanos(1);
  EXPECT_EQ(alice.burst(1000), 0U) << "a nanosecond too early";
  alice.now = kStart + milliseconds(1);
  EXPECT_EQ(alice.burst(1000), 1000U);
}

TEST(TokenBucket, ABurstIsNeverLongerThanConfigured) {
  BusySender alice = sender(kMegabyte, 2500);
  EXPECT_EQ(alice.burst(1000), 2000U) << "a third one would be more";
  alice.now += seconds(100);
  EXPECT_EQ(alice.burst(1000), 2000U) << "idle time does not add up";
  EXPECT_EQ(alice.burst(500), 500U);
}

TEST(TokenBucket, TheRateIsExactOverASecond) {
  for (const std::uint64_t rate : {kMegabyte / 10, kMegabyte, 125 * kMegabyte}) {
    for (const std::size_t datagram : {106U, 1514U}) {
      BusySender alice = sender(rate, 2 * datagram);
      alice.burst(datagram);
      const auto sent = static_cast<double>(alice.send_for(seconds(1), datagram));
      EXPECT_NEAR(sent, static_cast<double>(rate), static_cast<double>(2 * datagram)) << rate << " " << datagram;
    }
  }
}

TEST(TokenBucket, ASenderThatWakesUpLateKeepsItsRate) {
  // 1,000 datagrams in a second, each of which waits for a millisecond and 0.4 more, with bursts of only one.
  BusySender alice = sender(kMegabyte, 1000, microseconds(400));
  alice.burst(1000);
  const auto sent = static_cast<double>(alice.send_for(seconds(1), 1000));
  EXPECT_NEAR(sent, 1e6, 0.02e6);
}

TEST(TokenBucket, ASenderThatIsOftenHeldUpMayCatchUpAsMuchAsConfigured) {
  // Of 4 ms each burst, a sender that never wakes up before 20 ms.
  BusySender alice = sender(kMegabyte, 4000, milliseconds(20), 62'500);
  alice.burst(1000);
  EXPECT_NEAR(static_cast<double>(alice.send_for(seconds(1), 1000)), 1e6, 0.025e6);
  alice.now += seconds(1);
  EXPECT_EQ(alice.burst(1000), 4000U) << "a second later it has not waited";
}

TEST(TokenBucket, ASenderThatWakesUpVeryLateDoesNotSendTwiceAtOnce) {
  BusySender alice = sender(kMegabyte, 1000);
  alice.burst(1000);
  ASSERT_FALSE(alice.bucket.take(1000, alice.now));
  alice.now += seconds(5);
  EXPECT_EQ(alice.burst(1000), 1000U);
  alice.now += microseconds(1900);
  EXPECT_EQ(alice.burst(1000), 1000U);
  EXPECT_EQ(alice.bucket.ready_at(1000, alice.now), alice.now + microseconds(500)) << "half a datagram is credited";
}

TEST(TokenBucket, ARateOfManyGigabytesIsExact) {
  BusySender alice = sender(10'000 * kMegabyte, 100'000);
  alice.burst(1514);
  EXPECT_NEAR(static_cast<double>(alice.send_for(milliseconds(10), 1514)), 1e8, 1e5);
}

TEST(TokenBucket, ADatagramLongerThanABurstDelaysTheNextOne) {
  BusySender alice = sender(kMegabyte, 1000);
  EXPECT_TRUE(alice.bucket.take(5000, alice.now));
  EXPECT_EQ(alice.bucket.ready_at(5000, alice.now), kStart + milliseconds(5));
  alice.now += milliseconds(5);
  const auto sent = static_cast<double>(alice.send_for(seconds(1), 5000));
  EXPECT_NEAR(sent, 1e6, 5000);
}

TEST(TokenBucket, WhatDidNotLeaveIsPutBack) {
  BusySender alice = sender(kMegabyte, 1000);
  ASSERT_TRUE(alice.bucket.take(1000, alice.now));
  alice.bucket.give_back(1000);
  EXPECT_EQ(alice.burst(1000), 1000U);
  alice.bucket.give_back(5000);
  EXPECT_EQ(alice.burst(1000), 1000U) << "the bucket holds a burst";
}

TEST(TokenBucket, ExtremesNeitherOverflowNorDivideByZero) {
  BusySender still = sender(0, 0);
  EXPECT_TRUE(still.bucket.take(0, kStart));
  EXPECT_TRUE(still.bucket.take(65'535, kStart));
  EXPECT_EQ(still.bucket.ready_at(1, kStart), kStart + seconds(65'535)) << "a byte per second";
  BusySender fast = sender(UINT64_MAX, UINT64_MAX);
  EXPECT_TRUE(fast.bucket.take(SIZE_MAX, kStart));
  EXPECT_GT(fast.bucket.ready_at(SIZE_MAX, kStart), kStart);
  fast.now = Nanos::max();
  EXPECT_TRUE(fast.bucket.take(65'535, fast.now));
}

TEST(TokenBucket, AClockThatGoesBackBringsNothing) {
  BusySender alice = sender(kMegabyte, 1000);
  alice.burst(1000);
  EXPECT_FALSE(alice.bucket.take(1, kStart - seconds(10)));
  EXPECT_EQ(alice.bucket.ready_at(1000, kStart - seconds(10)), kStart + milliseconds(1));
}

}  // namespace
}  // namespace ringsock::engine
