#include "core/engine/stream/receive_window.h"

#include <gtest/gtest.h>

namespace ringsock::engine {
namespace {

constexpr std::uint32_t kRing = 1000;
constexpr std::uint16_t kQueue = 4;

/// A window that has announced its second half, as every connection does at once.
struct OpenWindow : ReceiveWindow {
  OpenWindow() : ReceiveWindow(kRing, kQueue) {
    const auto first = due();
    EXPECT_TRUE(first && first->has_buffer);
    EXPECT_EQ(first->offset, kRing / 2);
    EXPECT_EQ(first->limit, kQueue);
    announced(*first);
  }
};

TEST(ReceiveWindow, AnnouncesItsSecondHalfAtOnceAndThenNothing) {
  OpenWindow window;
  EXPECT_EQ(window.half(), 500u);
  EXPECT_FALSE(window.due());
}

TEST(ReceiveWindow, HandsOutBytesInOrderAndWrapsAtTheEndOfTheRing) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  ASSERT_TRUE(window.arrived(400));
  EXPECT_EQ(window.readable(), 900u);
  EXPECT_EQ(window.peek().offset, 0u);
  EXPECT_EQ(window.peek().length, 900u);
  window.consume(900);
  EXPECT_EQ(window.peek().length, 0u);

  // The first half is free again and is announced; the next bytes fill the rest of the second half, then the first.
  const auto again = window.due();
  ASSERT_TRUE(again && again->has_buffer);
  EXPECT_EQ(again->offset, 0u);
  window.announced(*again);
  ASSERT_TRUE(window.arrived(100));
  ASSERT_TRUE(window.arrived(30));
  EXPECT_EQ(window.peek().offset, 900u);
  EXPECT_EQ(window.peek().length, 100u);
  EXPECT_EQ(window.peek(100).offset, 0u);
  EXPECT_EQ(window.peek(100).length, 30u);
}

TEST(ReceiveWindow, GivesCreditsBackWhenHalfOfThemAreUsedUp) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(1));
  ASSERT_TRUE(window.arrived(1));
  window.consume(1);
  EXPECT_FALSE(window.due());
  window.consume(1);
  const auto credits = window.due();
  ASSERT_TRUE(credits);
  EXPECT_FALSE(credits->has_buffer);
  EXPECT_EQ(credits->limit, 2u + kQueue);
  window.announced(*credits);
  EXPECT_FALSE(window.due());
}

TEST(ReceiveWindow, CountsAMessageAsReadWhenItsLastByteIs) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(10));
  ASSERT_TRUE(window.arrived(10));
  window.consume(19);
  EXPECT_FALSE(window.due());  // one message, half of the credits is two
  window.consume(1);
  EXPECT_TRUE(window.due());
}

TEST(ReceiveWindow, RefusesBytesThatWereNeverAnnounced) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(900));
  EXPECT_EQ(window.arrived(101).error().code, EPROTO);
  EXPECT_EQ(window.arrived(0x1fffffff).error().code, EPROTO);
  EXPECT_EQ(window.readable(), 900u);
}

TEST(ReceiveWindow, RefusesMoreMessagesThanCredits) {
  OpenWindow window;
  for (int i = 0; i < kQueue; ++i) ASSERT_TRUE(window.arrived(1));
  EXPECT_EQ(window.arrived(1).error().code, EPROTO);
}

TEST(ReceiveWindow, AnEmptyMessageCarriesNothingAndDoesNoHarm) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(0));
  EXPECT_EQ(window.readable(), 0u);
  ASSERT_TRUE(window.arrived(5));
  window.consume(5);
  EXPECT_TRUE(window.due());  // both messages are read
}

TEST(ReceiveWindow, LeavesAnOddByteOfTheRingUnused) {
  ReceiveWindow window(1001, kQueue);
  EXPECT_EQ(window.half(), 500u);
  window.announced(*window.due());
  ASSERT_TRUE(window.arrived(1000));
  EXPECT_EQ(window.arrived(1).error().code, EPROTO);
}

}  // namespace
}  // namespace ringsock::engine
