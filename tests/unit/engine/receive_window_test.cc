#include "core/engine/stream/receive_window.h"

#include <gtest/gtest.h>

#include <vector>

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
  EXPECT_EQ(window.first_bytes(), 500u);
  EXPECT_FALSE(window.due());
}

TEST(ReceiveWindow, HandsOutBytesInOrderAndWrapsAtTheEndOfTheRing) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  ASSERT_TRUE(window.arrived(400));
  EXPECT_EQ(window.readable(), 900u);
  EXPECT_EQ(window.peek().offset, 0u);
  EXPECT_EQ(window.peek().length, 500u) << "up to the end of the first half";
  EXPECT_EQ(window.peek(500).offset, 500u);
  EXPECT_EQ(window.peek(500).length, 400u);
  window.consume(500);
  window.consume(400);
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

// -- bytes that the application reads where they lie

TEST(ReceiveWindow, AHeldSegmentIsAnnouncedOnceItIsGivenBack) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  const auto held = window.hold();
  EXPECT_EQ(held.span, (ReceiveWindow::Span{0, 500}));
  EXPECT_EQ(window.readable(), 0u);
  ASSERT_TRUE(window.arrived(400));
  window.consume(400);
  ASSERT_TRUE(window.due()) << "credits";
  EXPECT_FALSE(window.due()->has_buffer) << "the first half is read, but the application has it";
  window.give_back(held.segment, 1);
  const auto again = window.due();
  ASSERT_TRUE(again && again->has_buffer);
  EXPECT_EQ(again->offset, 0u);
  EXPECT_FALSE(window.is_holding());
}

TEST(ReceiveWindow, ASegmentIsFreeWithTheLastOfItsPieces) {
  OpenWindow window;
  std::vector<ReceiveWindow::Held> held;
  for (const std::uint32_t bytes : {200u, 300u, 1u}) {
    ASSERT_TRUE(window.arrived(bytes));
    held.push_back(window.hold());
  }
  EXPECT_EQ(held[0].segment, held[1].segment);
  EXPECT_NE(held[1].segment, held[2].segment);
  window.give_back(held[1].segment, 1);
  EXPECT_FALSE(window.due() && window.due()->has_buffer);
  window.give_back(held[0].segment, 1);
  const auto again = window.due();
  ASSERT_TRUE(again && again->has_buffer);
  EXPECT_EQ(again->offset, 0u);
}

TEST(ReceiveWindow, SegmentsThatComeBackOutOfOrderAreAnnouncedInOrder) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  const auto first = window.hold();
  ASSERT_TRUE(window.arrived(500));
  const auto second = window.hold();
  window.give_back(second.segment, 1);
  EXPECT_FALSE(window.due() && window.due()->has_buffer) << "the first half comes first";
  window.give_back(first.segment, 1);
  for (const std::uint32_t offset : {0u, 500u}) {
    const auto next = window.due();
    ASSERT_TRUE(next && next->has_buffer);
    EXPECT_EQ(next->offset, offset);
    window.announced(*next);
  }
}

TEST(ReceiveWindow, APieceIsAsLongAsTheApplicationCanTake) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  const auto first = window.hold(200);
  EXPECT_EQ(first.span, (ReceiveWindow::Span{0, 200}));
  EXPECT_EQ(window.readable(), 300u);
  const auto rest = window.hold(1000);
  EXPECT_EQ(rest.span, (ReceiveWindow::Span{200, 300}));
  EXPECT_EQ(rest.segment, first.segment);
}

TEST(ReceiveWindow, CreditsAreGrantedForMessagesThatAreHeld) {
  OpenWindow window;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(window.arrived(10));
    window.hold();
  }
  const auto credits = window.due();
  ASSERT_TRUE(credits);
  EXPECT_FALSE(credits->has_buffer);
  EXPECT_EQ(credits->limit, 2u + kQueue);
}

TEST(ReceiveWindow, GivingBackTooMuchDoesNoHarm) {
  OpenWindow window;
  window.give_back(0, 7);
  ASSERT_TRUE(window.arrived(500));
  const auto held = window.hold();
  window.give_back(held.segment + 1, 1);
  EXPECT_TRUE(window.is_holding());
  window.give_back(held.segment, 9);
  EXPECT_FALSE(window.is_holding());
}

TEST(ReceiveWindow, AWindowThatIsFullOfHeldBytesGrowsAndNoFurther) {
  ReceiveWindow window(64'000, 1000, 1000);
  std::vector<ReceiveWindow::Held> held;
  std::uint64_t announced = window.first_bytes();
  for (;;) {
    ASSERT_TRUE(window.arrived(static_cast<std::uint32_t>(announced - window.read_bytes())));
    while (window.readable() > 0) held.push_back(window.hold());
    const auto next = window.due();
    if (!next || !next->has_buffer) break;
    window.announced(*next);
    announced += next->length;
  }
  EXPECT_EQ(announced, 64'000u) << "nothing that is held is announced again";
  for (const auto& one : held) window.give_back(one.segment, 1);
  EXPECT_TRUE(window.is_due());
}

TEST(ReceiveWindow, AProcessThatGoesOnFromSavedStateHoldsNothing) {
  OpenWindow window, copy;
  ASSERT_TRUE(window.arrived(500));
  const auto held = window.hold();
  const std::uint32_t before = copy.holding();
  ASSERT_TRUE(copy.restore(window.save()));
  EXPECT_FALSE(copy.is_holding());
  EXPECT_NE(copy.holding(), before);
  EXPECT_TRUE(copy.is_due());
  window.give_back(held.segment, 1);
}

TEST(ReceiveWindow, ACopyGoesOnFromWhatWasSaved) {
  OpenWindow window;
  OpenWindow copy;
  ASSERT_TRUE(window.arrived(500));
  ASSERT_TRUE(window.arrived(400));
  window.consume(600);

  ASSERT_TRUE(copy.restore(window.save()));
  EXPECT_EQ(copy.peek(), (ReceiveWindow::Span{600, 300}));
  const auto again = copy.due();
  ASSERT_TRUE(again && again->has_buffer);
  EXPECT_EQ(again->offset, 0u);
  copy.announced(*again);
  ASSERT_TRUE(copy.arrived(600));
  EXPECT_FALSE(copy.arrived(1)) << "no more was announced";
}

TEST(ReceiveWindow, RefusesToGoOnFromTheImpossible) {
  OpenWindow window;
  ASSERT_TRUE(window.arrived(500));
  const auto refuses = [&](auto change) {
    auto saved = window.save();
    change(saved);
    return window.restore(saved).error().code == EPROTO;
  };
  using Saved = ReceiveWindow::Saved;
  EXPECT_TRUE(refuses([](Saved& saved) { saved.segment_count = saved.oldest_segment; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.segment_count += 100; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.segments[1].offset = kRing; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.segments[1].start = 499; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.read_bytes = 501; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.arrived_bytes = kRing + 1; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.read_messages = saved.arrived_messages + 1; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.marks_set = saved.marks_taken + 100; }));
  EXPECT_TRUE(refuses([](Saved& saved) { saved.used_bytes = kRing + 1; }));
  EXPECT_TRUE(window.restore(window.save()));
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
  EXPECT_EQ(window.first_bytes(), 500u);
  window.announced(*window.due());
  ASSERT_TRUE(window.arrived(1000));
  EXPECT_EQ(window.arrived(1).error().code, EPROTO);
}

/// A window that may grow from 2 x 100 bytes to 4000.
struct GrowingWindow : ReceiveWindow {
  GrowingWindow() : ReceiveWindow(4000, 384, 200) {}
  /// The segments that are announced now.
  std::vector<Span> announce() {
    std::vector<Span> segments;
    while (const auto next = due()) {
      if (next->has_buffer) segments.push_back({next->offset, next->length});
      announced(*next);
    }
    return segments;
  }
  void take(std::uint32_t length) {
    ASSERT_TRUE(arrived(length));
    consume(length);
  }
};
using Segments = std::vector<ReceiveWindow::Span>;

TEST(GrowingReceiveWindow, NeedsNoAnnouncementBeforeHalfOfItsFirstPartIsRead) {
  GrowingWindow window;
  EXPECT_EQ(window.first_bytes(), 200U) << "the connect data names all of the part";
  EXPECT_FALSE(window.is_due());
  for (int message = 0; message < 49; ++message) window.take(2);
  EXPECT_FALSE(window.is_due());
  window.take(2);
  EXPECT_EQ(window.announce(), (Segments{{0, 100}}));
}

TEST(GrowingReceiveWindow, MayUseAllOfASmallRingAtFirst) {
  ReceiveWindow window(101, 384, 200);
  EXPECT_EQ(window.first_bytes(), 100U);
  ASSERT_TRUE(window.arrived(100));
  EXPECT_FALSE(window.is_due()) << "it cannot grow";
  window.consume(50);
  const auto half = window.due();
  ASSERT_TRUE(half && half->has_buffer);
  EXPECT_EQ(half->offset, 0U);
  EXPECT_EQ(half->length, 50U);
}

TEST(GrowingReceiveWindow, AnnouncesSmallSegmentsInTurnForSmallMessages) {
  GrowingWindow window;
  for (int lap = 0; lap < 100; ++lap) {
    for (const std::uint32_t offset : {0U, 100U}) {
      for (int message = 0; message < 49; ++message) window.take(2);
      EXPECT_EQ(window.announce(), Segments{});
      window.take(2);
      EXPECT_EQ(window.announce(), (Segments{{offset, 100}}));
    }
  }
}

TEST(GrowingReceiveWindow, GrowsForLargeMessages) {
  GrowingWindow window;
  window.take(100);
  EXPECT_EQ(window.announce(), (Segments{{200, 600}})) << "four times as much, behind what is in use";
  window.take(100);
  EXPECT_EQ(window.announce(), Segments{}) << "the peer has places for two";
  window.take(200);
  EXPECT_EQ(window.announce(), (Segments{{800, 3200}}));
  window.take(400);
  EXPECT_EQ(window.announce(), Segments{});
  window.take(1200);
  EXPECT_EQ(window.announce(), (Segments{{0, 2000}})) << "now the halves of the ring in turn";
  window.take(2000);
  EXPECT_EQ(window.announce(), (Segments{{2000, 2000}}));
}

TEST(GrowingReceiveWindow, GrowsForAPeerThatHasFilledEverythingWhileNobodyReads) {
  GrowingWindow window;
  for (int message = 0; message < 99; ++message) ASSERT_TRUE(window.arrived(2));
  EXPECT_EQ(window.announce(), Segments{});
  ASSERT_TRUE(window.arrived(2));
  EXPECT_TRUE(window.is_due());
  EXPECT_EQ(window.announce(), (Segments{{200, 600}}));
  EXPECT_FALSE(window.is_half_full());
  ASSERT_TRUE(window.arrived(600));
  EXPECT_EQ(window.announce(), (Segments{{800, 3200}}));
  ASSERT_TRUE(window.arrived(3200));
  EXPECT_EQ(window.announce(), Segments{}) << "it holds no more";
  EXPECT_EQ(window.readable(), 4000U);
  EXPECT_EQ(window.peek(150).offset, 150U);
  EXPECT_EQ(window.peek(800).length, 3200U);
}

TEST(GrowingReceiveWindow, IsReadInTheOrderOfTheSegments) {
  GrowingWindow window;
  for (int message = 0; message < 50; ++message) window.take(2);
  EXPECT_EQ(window.announce(), (Segments{{0, 100}}));
  // [100, 200) and [0, 100) are full and not read.
  for (int message = 0; message < 100; ++message) ASSERT_TRUE(window.arrived(2));
  EXPECT_EQ(window.announce(), (Segments{{200, 600}}));
  ASSERT_TRUE(window.arrived(10));
  for (const std::uint32_t offset : {100U, 0U, 200U}) {
    const auto span = window.peek();
    EXPECT_EQ(span.offset, offset);
    window.consume(span.length);
  }
  EXPECT_EQ(window.readable(), 0U);
}

TEST(GrowingReceiveWindow, MayAnnounceAllOfTheRingAtOnce) {
  ReceiveWindow window(4000, 384, 100);
  EXPECT_FALSE(window.due());
  window.use_all();
  const auto rest = window.due();
  ASSERT_TRUE(rest && rest->has_buffer);
  EXPECT_EQ(rest->offset, 100U);
  EXPECT_EQ(rest->length, 3900U);
  window.announced(*rest);
  EXPECT_FALSE(window.due());
  ASSERT_TRUE(window.arrived(100));
  ASSERT_TRUE(window.arrived(3900));
  EXPECT_FALSE(window.due());
}

TEST(GrowingReceiveWindow, RefusesWhatWasNotAnnouncedYet) {
  GrowingWindow window;
  EXPECT_EQ(window.arrived(201).error().code, EPROTO);
  ASSERT_TRUE(window.arrived(200));
  EXPECT_EQ(window.arrived(1).error().code, EPROTO) << "although the ring has room";
  EXPECT_EQ(window.readable(), 200U);
}

TEST(ReceiveWindow, CountsReadMessagesAtTheLatestWhenAllAreRead) {
  ReceiveWindow window(131072, 384);
  window.announced(*window.due());
  for (int message = 0; message < 384; ++message) ASSERT_TRUE(window.arrived(1));
  EXPECT_EQ(window.arrived(1).error().code, EPROTO);
  window.consume(191);
  EXPECT_FALSE(window.due());
  window.consume(1);
  ASSERT_TRUE(window.due());
  EXPECT_EQ(window.due()->limit, 192U + 384U);
  window.consume(7);
  EXPECT_EQ(window.due()->limit, 192U + 384U) << "messages in the middle are counted by the dozen";
  window.consume(185);
  EXPECT_EQ(window.due()->limit, 384U + 384U);
}

}  // namespace
}  // namespace ringsock::engine
