#include "core/engine/stream/send_window.h"

#include <gtest/gtest.h>

namespace ringsock::engine {
namespace {

constexpr std::uint64_t kFirst = 0x1000;
constexpr std::uint64_t kSecond = 0x9000;

TEST(SendWindow, FillsABufferToItsLastByteAndNeverSpansTwo) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 10));
  ASSERT_TRUE(window.add_buffer({kSecond, 8, 50}));

  const auto most = window.take(80);
  EXPECT_EQ(most.addr, kFirst);
  EXPECT_EQ(most.length, 80u);
  const auto rest = window.take(80);  // only 20 are left in the first buffer
  EXPECT_EQ(rest.addr, kFirst + 80);
  EXPECT_EQ(rest.key, 7u);
  EXPECT_EQ(rest.length, 20u);
  const auto next = window.take(80);
  EXPECT_EQ(next.addr, kSecond);
  EXPECT_EQ(next.key, 8u);
  EXPECT_EQ(next.length, 50u);
  EXPECT_FALSE(window.can_send());  // no buffer, though credits are left
}

TEST(SendWindow, TwoMessagesHaveRoomInTwoBuffers) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 10));
  window.take(80);
  EXPECT_EQ(window.room_of_two(60), 20U) << "nothing else is announced";
  ASSERT_TRUE(window.add_buffer({kSecond, 8, 50}));
  EXPECT_EQ(window.room_of_two(15), 15U);
  EXPECT_EQ(window.room_of_two(60), 60U);
  EXPECT_EQ(window.room_of_two(200), 70U);
  window.set_limit(2);
  EXPECT_EQ(window.room_of_two(60), 20U) << "there is one credit";
  window.set_limit(1);
  EXPECT_EQ(window.room_of_two(60), 0U);
}

TEST(SendWindow, StopsWhenTheSequenceEqualsTheLimit) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 2));
  window.take(1);
  window.take(1);
  EXPECT_FALSE(window.can_send());
  window.set_limit(3);
  EXPECT_TRUE(window.can_send());
}

TEST(SendWindow, CreditsGoOnAcrossTheWrapOfSixteenBits) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 1u << 20}, 384));
  std::uint32_t limit = 384;
  for (int message = 0; message < 70000; ++message) {
    if (!window.can_send()) {
      limit += 384;
      window.set_limit(limit);  // the value on the wire may exceed 16 bits
    }
    ASSERT_TRUE(window.can_send()) << message;
    window.take(1);
  }
}

TEST(SendWindow, ACopyGoesOnFromWhatWasSaved) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 3));
  SendWindow copy;
  ASSERT_TRUE(window.add_buffer({kSecond, 8, 50}));
  window.take(80);

  ASSERT_TRUE(copy.restore(window.save()));
  EXPECT_EQ(copy.take(80).addr, kFirst + 80);
  EXPECT_EQ(copy.take(80).addr, kSecond);
  EXPECT_FALSE(copy.can_send());
}

TEST(SendWindow, RefusesToGoOnFromTheImpossible) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 3));
  auto saved = window.save();
  saved.queued_tail = saved.queued_head + 3;
  EXPECT_EQ(window.restore(saved).error().code, EPROTO);
  saved = window.save();
  saved.current = {UINT64_MAX, 7, 100};
  EXPECT_EQ(window.restore(saved).error().code, EPROTO);
}

/// As poll(2) tells of a socket on Linux: a sender that finds little room after each wake-up sends in small pieces.
TEST(SendWindow, IsWritableWhenAThirdOfTheBufferIsFree) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 90}, 20));
  EXPECT_TRUE(window.is_writable());
  window.take(29);
  EXPECT_TRUE(window.is_writable()) << "more than two thirds of the first half, and nothing is known of the second";
  window.take(1);
  EXPECT_FALSE(window.is_writable());
  EXPECT_TRUE(window.can_send()) << "who does not wait may send";
  ASSERT_TRUE(window.add_buffer({kSecond, 8, 90}));
  EXPECT_TRUE(window.is_writable());
  window.take(60);
  EXPECT_TRUE(window.is_writable());
  window.take(90);
  EXPECT_FALSE(window.is_writable());
  ASSERT_TRUE(window.add_buffer({kFirst, 7, 90}));
  EXPECT_TRUE(window.is_writable());
  window.set_limit(4);
  EXPECT_FALSE(window.is_writable()) << "no credit";
}

TEST(SendWindow, IsWritableWhenAThirdOfAFirstBufferIsFreeThatIsTheWholeOne) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 90}, 20, SendWindow::FirstBuffer::whole));
  window.take(59);
  EXPECT_TRUE(window.is_writable());
  window.take(1);
  EXPECT_FALSE(window.is_writable());
  ASSERT_TRUE(window.add_buffer({kFirst, 7, 45}));
  EXPECT_TRUE(window.is_writable());
}

TEST(SendWindow, RefusesMoreBuffersThanThePeerHasSlots) {
  SendWindow window;
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 10));
  ASSERT_TRUE(window.add_buffer({kSecond, 8, 50}));
  ASSERT_TRUE(window.add_buffer({kFirst, 7, 100}));
  EXPECT_EQ(window.add_buffer({kSecond, 8, 50}).error().code, EPROTO);
}

TEST(SendWindow, RefusesABufferThatEndsBeyondAllAddresses) {
  constexpr std::uint64_t kLast = UINT64_MAX - 49;
  SendWindow window;
  EXPECT_EQ(window.reset({kLast, 7, 100}, 10).error().code, EPROTO);
  ASSERT_TRUE(window.reset({kFirst, 7, 100}, 10));
  EXPECT_EQ(window.add_buffer({kLast, 8, 51}).error().code, EPROTO);
  EXPECT_TRUE(window.add_buffer({kLast, 8, 49}));
}

}  // namespace
}  // namespace ringsock::engine
