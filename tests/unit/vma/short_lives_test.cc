#include "libvmacompat/tcp/short_lives.h"

#include <gtest/gtest.h>

namespace ringsock::vma {
namespace {

using std::chrono::seconds;
using enum Exchange::Direction;

constexpr Nanos kStart = seconds(1'000);

TEST(Exchange, ARequestAndItsAnswerDoNotLast) {
  Exchange one;
  one.begin(kStart);
  one.count(sent, 300);
  one.count(received, 20'000);
  one.count(received, 0);  // the end
  EXPECT_FALSE(one.lasts(kStart));
}

TEST(Exchange, ManyTurnsBytesOrCallsLastAndSoDoesTime) {
  Exchange turns, bytes, calls, time;
  for (Exchange* const one : {&turns, &bytes, &calls, &time}) one->begin(kStart);
  for (unsigned i = 0; i <= Exchange::kTurns; ++i) turns.count(i % 2 == 0 ? received : sent, 1);
  for (unsigned i = 0; i < Exchange::kCalls; ++i) calls.count(received, 1);
  bytes.count(sent, Exchange::kBytes);
  for (const Exchange* const one : {&turns, &bytes, &calls}) EXPECT_TRUE(one->lasts(kStart));
  EXPECT_FALSE(time.lasts(kStart + Exchange::kAge - Nanos(1)));
  EXPECT_TRUE(time.lasts(kStart + Exchange::kAge));
}

TEST(Exchange, KnowsWhoOnlyReceives) {
  Exchange one;
  EXPECT_FALSE(one.only_receives());
  one.count(received, 10);
  EXPECT_TRUE(one.only_receives());
  one.count(sent, 10);
  EXPECT_FALSE(one.only_receives());
  one.count(received, Exchange::kBytes - 1);
  EXPECT_FALSE(one.only_receives()) << "that may have been an answer";
  one.count(received, 1);
  EXPECT_TRUE(one.only_receives()) << "a stream";
  one.count(sent, 10);
  EXPECT_FALSE(one.only_receives());
}

TEST(ShortLives, SeveralAreNeededAndLongOnesUndoThem) {
  ShortLives lives;
  const auto place = ShortLives::place_of(SocketAddress::v4(0x0a000001, 80));
  const auto other = ShortLives::place_of(SocketAddress::v4(0x0a000001, 81));
  for (unsigned i = 1; i < ShortLives::kEnough; ++i) lives.note_short(place, kStart);
  EXPECT_FALSE(lives.are_expected(place, kStart));
  for (unsigned i = 0; i < 100; ++i) lives.note_short(place, kStart);
  EXPECT_TRUE(lives.are_expected(place, kStart));
  EXPECT_FALSE(lives.are_expected(other, kStart));
  lives.note_long(place, kStart);
  EXPECT_TRUE(lives.are_expected(place, kStart)) << "one among many";
  lives.note_long(place, kStart);
  EXPECT_FALSE(lives.are_expected(place, kStart));
}

TEST(ShortLives, AreForgotten) {
  ShortLives lives;
  const auto place = ShortLives::place_of(SocketAddress::wildcard(AF_INET6, 80));
  for (unsigned i = 0; i < ShortLives::kEnough; ++i) lives.note_short(place, kStart);
  EXPECT_TRUE(lives.are_expected(place, kStart + ShortLives::kMemory - Nanos(1)));
  EXPECT_FALSE(lives.are_expected(place, kStart + ShortLives::kMemory));
  lives.note_short(place, kStart + ShortLives::kMemory);
  EXPECT_FALSE(lives.are_expected(place, kStart + ShortLives::kMemory)) << "what was forgotten does not count again";
}

TEST(ShortLives, AMappedAddressIsThePlaceOfTheAddress) {
  const auto plain = SocketAddress::v4(0x0a000001, 80);
  EXPECT_EQ(ShortLives::place_of(plain.mapped().unmapped()), ShortLives::place_of(plain));
}

}  // namespace
}  // namespace ringsock::vma
