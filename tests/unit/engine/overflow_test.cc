// The overflow area of a stream: its two halves over shared words, step by step.
#include "core/engine/stream/overflow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ringsock::engine {
namespace {

constexpr std::size_t kArea = 256U << 10;

/// One direction: the sender's half, the owner's half, and the words in the memory of each. Messages of the ring are
/// only counted.
struct Direction {
  OverflowWords owners{};
  OverflowWords senders{};
  std::vector<std::byte> area = std::vector<std::byte>(kArea);
  OverflowWriter writer;
  OverflowReader reader;
  std::uint16_t sent_messages = 0;
  std::uint64_t given = 0;  ///< bytes of pages, which are empty afterwards

  explicit Direction(std::uint64_t limit = kArea) {
    writer.open(senders, owners, area, limit);
    reader.open(owners, senders, area);
  }
  /// Appends, and returns whether the owner must be told.
  bool append(std::string_view text) {
    const auto room = writer.begin();
    EXPECT_TRUE(room && *room >= text.size());
    writer.put(std::as_bytes(std::span(text)));
    return writer.end(sent_messages);
  }
  /// Fills the area to the last byte.
  void fill() {
    const auto room = writer.begin();
    ASSERT_TRUE(room && *room > 0);
    const std::string all(*room, 'f');
    writer.put(std::as_bytes(std::span(all)));
    writer.end(sent_messages);
  }
  bool release() {
    return reader.release([&](std::span<std::byte> piece) {
      given += piece.size();
      std::ranges::fill(piece, std::byte{0});
    });
  }
  bool look() {
    const auto found = reader.look(sent_messages);
    release();
    EXPECT_TRUE(found);
    return found && *found;
  }
  std::string read(std::uint64_t most = UINT64_MAX) {
    std::string out;
    while (reader.readable() > 0 && out.size() < most) {
      const auto piece = reader.peek();
      const std::size_t step = std::min<std::uint64_t>(piece.size(), most - out.size());
      out.append(reinterpret_cast<const char*>(piece.data()), step);
      reader.consume(step);
    }
    return out;
  }
};

TEST(Overflow, CarriesBytesInOrder) {
  Direction one;
  EXPECT_TRUE(one.append("hello "));
  EXPECT_FALSE(one.append("world")) << "one message is under way";
  EXPECT_TRUE(one.look());
  EXPECT_EQ(one.reader.readable(), 11u);
  EXPECT_EQ(one.reader.peek(6).size(), 5u);
  EXPECT_EQ(one.read(), "hello world");
  EXPECT_FALSE(one.look());
}

TEST(Overflow, WrapsAtTheEndOfTheArea) {
  Direction one;
  one.fill();
  one.look();
  EXPECT_EQ(one.read(kArea - 3).size(), kArea - 3);
  one.append("across the end");
  one.look();
  EXPECT_EQ(one.read(), "fffacross the end");
}

TEST(Overflow, AReaderThatKeepsUpUsesTheStartOfTheAreaOnly) {
  Direction one;
  for (int turn = 0; turn < 1000; ++turn) {
    one.append(std::string(1000, static_cast<char>('a' + turn % 26)));
    one.look();
    EXPECT_EQ(one.read(), std::string(1000, static_cast<char>('a' + turn % 26)));
  }
  EXPECT_TRUE(
      std::all_of(one.area.begin() + 1000, one.area.end(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(Overflow, IsLeftOnlyWhenAllIsReadAndTheOwnerHasLooked) {
  Direction one;
  EXPECT_FALSE(one.writer.in_use());
  one.append("a");
  EXPECT_TRUE(one.writer.in_use());
  EXPECT_FALSE(*one.writer.leave());
  one.look();
  EXPECT_FALSE(*one.writer.leave()) << "not read yet";
  one.read();
  EXPECT_TRUE(*one.writer.leave());
  EXPECT_FALSE(one.writer.in_use());
}

TEST(Overflow, IsNotLeftWhileAMessageIsUnderWay) {
  Direction one;
  EXPECT_TRUE(one.append("a"));
  one.look();
  EXPECT_TRUE(one.append("b")) << "the owner has looked";
  one.owners.told.store(0);  // The owner is between its two steps, and reads `written` with "b".
  one.look();
  one.owners.told.store(1);  // The message about "b" has not been handled yet.
  EXPECT_EQ(one.read(), "ab");
  EXPECT_FALSE(*one.writer.leave());
  one.look();
  EXPECT_TRUE(*one.writer.leave());
}

TEST(Overflow, BytesBehindAMessageThatHasNotArrivedWait) {
  Direction one;
  one.append("a");
  one.look();
  one.read();
  ASSERT_TRUE(*one.writer.leave());
  one.sent_messages = 7;
  EXPECT_TRUE(one.append("b")) << "a message of its own follows";
  const auto early = one.reader.look(6);
  ASSERT_TRUE(early);
  EXPECT_FALSE(*early);
  EXPECT_EQ(one.reader.readable(), 0u);
  EXPECT_TRUE(*one.reader.look(7));
  one.release();
  EXPECT_EQ(one.read(), "b");
}

TEST(Overflow, HasRoomAgainWhenHalfOfItIsFree) {
  Direction one(1000);
  EXPECT_TRUE(one.writer.has_room());
  one.append(std::string(500, 'x'));
  EXPECT_TRUE(one.writer.has_room());
  one.append("y");
  EXPECT_FALSE(one.writer.has_room());
  EXPECT_EQ(*one.writer.begin(), 499u) << "a sender that does not wait may fill it";
}

TEST(Overflow, TellsASenderThatWaitsOnce) {
  Direction one(1000);
  one.append(std::string(1000, 'x'));
  EXPECT_EQ(*one.writer.begin(), 0u);
  one.look();
  one.read(499);
  EXPECT_FALSE(one.reader.must_tell()) << "less than half";
  one.read(1);
  EXPECT_TRUE(one.reader.must_tell());
  EXPECT_FALSE(one.reader.must_tell());
  EXPECT_TRUE(one.writer.has_room());
}

/// The sender finds the area full, and the owner reads before or after the sender has said so: one of them notices.
TEST(Overflow, NoOrderOfStepsLosesTheWakeUp) {
  for (const bool reads_first : {false, true}) {
    Direction one(1000);
    one.append(std::string(1000, 'x'));
    one.owners.wake_at.store(0);
    one.look();
    if (reads_first) {
      one.read();
      EXPECT_FALSE(one.reader.must_tell());
      EXPECT_EQ(*one.writer.begin(), 1000u);
    } else {
      EXPECT_EQ(*one.writer.begin(), 0u);
      one.read();
      EXPECT_TRUE(one.reader.must_tell());
    }
  }
}

TEST(Overflow, IsGivenBackWhenItIsEmptyAndWasUsed) {
  Direction one;
  int given = 0;
  const auto give = [&](std::span<std::byte> area) { given += area.size() == kArea ? 1 : 100; };
  one.append("little");
  one.look();
  one.read();
  one.reader.give_back(give);
  EXPECT_EQ(given, 0);
  one.fill();
  one.look();
  one.read(kArea - 1);
  one.reader.give_back(give);
  EXPECT_EQ(given, 0) << "a byte is unread";
  one.read();
  one.reader.give_back(give);
  one.reader.give_back(give);
  EXPECT_EQ(given, 1);
  one.append("and on");
  one.look();
  EXPECT_EQ(one.read(), "and on");
}

TEST(Overflow, IsNotGivenBackBeneathASenderThatWrites) {
  Direction one;
  one.fill();
  one.look();
  one.read();
  ASSERT_GT(*one.writer.begin(), 0u);
  one.reader.give_back([](std::span<std::byte>) { FAIL() << "the sender has the gate"; });
  one.writer.put(std::as_bytes(std::span("new", 3)));
  EXPECT_TRUE(one.writer.end(0));
  one.reader.give_back([](std::span<std::byte>) { FAIL() << "there are bytes"; });
  one.look();
  EXPECT_EQ(one.read(), "new");
}

TEST(Overflow, ItsOwnerShutsItForGoodAndKnowsHowFarItWasWritten) {
  Direction one;
  EXPECT_EQ(*one.reader.shut(), 0u);
  one.reader.reopen();
  one.append(std::string(1000, 'x'));
  one.look();
  one.read();
  one.append(std::string(300, 'x'));
  EXPECT_EQ(*one.reader.shut(), 1000u) << "the later bytes went to the start again";
  EXPECT_EQ(one.writer.reached(), 1000u);
  one.reader.reopen();
  one.append(std::string(1000, 'x'));
  EXPECT_EQ(*one.reader.shut(), 1300u) << "nobody has looked at the last ones";
  EXPECT_EQ(one.writer.reached(), 1300u);
  EXPECT_EQ(*one.writer.begin(), 0u) << "and there will be no more";
}

TEST(Overflow, ASenderThatWentRoundHasWrittenAllOfIt) {
  Direction one;
  one.fill();
  one.look();
  one.read(1000);
  one.append(std::string(1000, 'x'));
  EXPECT_EQ(*one.reader.shut(), kArea);
  EXPECT_EQ(one.writer.reached(), kArea);
}

TEST(Overflow, IsNotShutBeneathASenderThatWrites) {
  Direction one;
  ASSERT_GT(*one.writer.begin(), 0u);
  EXPECT_FALSE(one.reader.shut());
  one.writer.put(std::as_bytes(std::span("new", 3)));
  one.writer.end(0);
  EXPECT_EQ(*one.reader.shut(), 3u);
}

TEST(Overflow, WhatAHostileSenderSaysIsNoMoreThanTheArea) {
  Direction one;
  one.owners.written.store(UINT64_MAX - 5);
  EXPECT_EQ(*one.reader.shut(), kArea);
  one.reader.reopen();
  one.owners.base.store(UINT64_MAX);
  EXPECT_LE(*one.reader.shut(), kArea);
}

TEST(Overflow, MemoryOfAnEarlierConnectionIsGivenBackToo) {
  Direction one;
  one.reader.has_memory(kArea);
  EXPECT_TRUE(one.reader.has_much_to_give());
  int given = 0;
  one.reader.give_back([&](std::span<std::byte>) { ++given; });
  EXPECT_EQ(given, 1);
}

TEST(Overflow, ASenderThatFindsTheGateShutIsTold) {
  Direction one;
  one.fill();
  one.look();
  one.read();
  one.owners.wake_at.store(0);
  one.reader.give_back([&](std::span<std::byte>) { EXPECT_EQ(*one.writer.begin(), 0u); });
  EXPECT_TRUE(one.reader.must_tell());
  EXPECT_EQ(*one.writer.begin(), kArea);
}

TEST(Overflow, HasNoRoomWhileItsOwnerGivesPagesBack) {
  Direction one;
  one.fill();
  one.look();
  one.read();
  EXPECT_TRUE(one.writer.has_room());
  EXPECT_TRUE(one.reader.must_tell()) << "the sender had filled it";
  one.reader.give_back([&](std::span<std::byte>) {
    EXPECT_FALSE(one.writer.has_room()) << "an append would be refused";
    EXPECT_FALSE(one.writer.has_room()) << "and whoever asks waits";
  });
  EXPECT_TRUE(one.reader.must_tell()) << "one message for all who asked";
  EXPECT_FALSE(one.reader.must_tell());
  EXPECT_TRUE(one.writer.has_room());
  EXPECT_EQ(*one.writer.begin(), kArea);
}

TEST(Overflow, AFirstSenderThatFindsMemoryOfAnEarlierConnectionGivenBackIsTold) {
  Direction one;
  one.reader.has_memory(kArea);
  one.reader.give_back([&](std::span<std::byte>) { EXPECT_FALSE(one.writer.has_room()); });
  EXPECT_TRUE(one.reader.must_tell());
  one.reader.has_memory(kArea);
  one.reader.give_back([&](std::span<std::byte>) { EXPECT_EQ(*one.writer.begin(), 0u); });
  EXPECT_TRUE(one.reader.must_tell());
  EXPECT_TRUE(one.writer.has_room());
}

/// A message at the opening of the gate would come too early, and there would be no second one.
TEST(Overflow, ASenderWithLittleRoomThatFindsTheGateShutIsToldOnceThereIsMore) {
  Direction one;
  one.fill();
  one.look();
  one.read(100);
  one.owners.gate.store(kGateOwner);
  EXPECT_FALSE(one.writer.has_room());
  EXPECT_EQ(*one.writer.begin(), 0u);
  one.owners.gate.store(kGateOpen);
  EXPECT_FALSE(one.reader.must_tell());
  EXPECT_FALSE(one.writer.has_room());
  one.read(kArea / 2 - 101);
  EXPECT_FALSE(one.reader.must_tell());
  one.read(1);
  EXPECT_TRUE(one.reader.must_tell());
  EXPECT_TRUE(one.writer.has_room());
}

/// An earlier wish, for more room, would let it wait longer.
TEST(Overflow, ASenderThatWaitsForTheGateIsToldAlthoughItWishedForMore) {
  Direction one;
  one.writer.may_touch(1000);
  one.append(std::string(1000, 'a'));
  EXPECT_EQ(*one.writer.begin(), 0u) << "it wishes that all be read";
  one.writer.may_touch(kArea);
  one.append("b");
  one.look();
  one.read(1);
  EXPECT_FALSE(one.reader.must_tell());
  one.owners.gate.store(kGateOwner);
  EXPECT_FALSE(one.writer.has_room());
  one.owners.gate.store(kGateOpen);
  EXPECT_TRUE(one.reader.must_tell());
  EXPECT_TRUE(one.writer.has_room());
}

/// The rest of the area would be memory that the peer makes the sender use.
TEST(Overflow, ABoundedSenderFillsTheStartOfTheAreaAgainAndAgain) {
  Direction one;
  one.writer.may_touch(1000);
  for (int turn = 0; turn < 5; ++turn) {
    EXPECT_EQ(one.writer.reach(400), 400u);
    EXPECT_EQ(*one.writer.begin(), 1000u);
    const std::string first(600, 'a');
    one.writer.put(std::as_bytes(std::span(first)));
    one.writer.end(0);
    EXPECT_EQ(one.writer.reach(500), 1100u) << "what it would need";
    one.append(std::string(400, 'b'));
    EXPECT_EQ(*one.writer.begin(), 0u);
    EXPECT_FALSE(one.writer.has_room());
    one.look();
    one.read(999);
    EXPECT_FALSE(one.reader.must_tell());
    EXPECT_FALSE(one.writer.has_room());
    EXPECT_EQ(*one.writer.begin(), 0u);
    EXPECT_EQ(one.read(), "b");
    EXPECT_TRUE(one.reader.must_tell()) << "all is read";
    EXPECT_TRUE(one.writer.has_room());
  }
  EXPECT_TRUE(
      std::all_of(one.area.begin() + 1000, one.area.end(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(Overflow, ABoundThatRisesLetsTheSenderGoOn) {
  Direction one;
  one.writer.may_touch(100);
  one.append(std::string(100, 'a'));
  EXPECT_EQ(*one.writer.begin(), 0u);
  one.writer.may_touch(kArea);
  EXPECT_EQ(*one.writer.begin(), kArea - 100);
  one.writer.put(std::as_bytes(std::span("b", 1)));
  one.writer.end(0);
  EXPECT_TRUE(one.writer.has_room());
  one.look();
  EXPECT_EQ(one.read(), std::string(100, 'a') + "b");
}

/// It waits for room in the ring, as if there were no area.
TEST(Overflow, ASenderThatMayWriteNothingHasNoRoom) {
  Direction one;
  EXPECT_TRUE(one.writer.has_room()) << "it has not tried";
  one.writer.may_touch(0);
  EXPECT_EQ(*one.writer.begin(), 0u);
  EXPECT_FALSE(one.writer.has_room());
  EXPECT_FALSE(one.writer.in_use());
  EXPECT_EQ(one.owners.gate.load(), std::uint32_t{kGateOpen});
  one.writer.may_touch(10);
  one.append("0123456789");
  one.look();
  EXPECT_EQ(one.read(), "0123456789");
  EXPECT_TRUE(one.writer.has_room());
}

/// The sender may not have written what it says: then the owner's reading makes the pages.
TEST(Overflow, AWindowIsGivenBackBeforeTheNextOneIsRead) {
  Direction one;
  one.reader.limit_window(1000);
  one.append(std::string(900, 'a') + std::string(900, 'b') + std::string(900, 'c'));
  EXPECT_TRUE(one.look());
  std::string all;
  for (int window = 0; window < 3; ++window) {
    EXPECT_EQ(one.reader.readable(), window < 2 ? 1000u : 700u);
    EXPECT_EQ(one.given > 0, window > 0);
    all += one.read(999);
    EXPECT_FALSE(one.release()) << "not before all of it is read";
    all += one.read();
    EXPECT_EQ(one.release(), window < 2);
  }
  EXPECT_EQ(all, std::string(900, 'a') + std::string(900, 'b') + std::string(900, 'c'));
}

TEST(Overflow, AWindowAroundTheEndOfTheAreaIsKept) {
  Direction one;
  one.append("x");
  one.look();
  one.read();
  one.fill();
  one.look();
  one.read(kArea - 100);
  one.reader.limit_window(kArea - 100);
  one.append(std::string(300, 'y'));
  one.look();
  EXPECT_EQ(one.read(), std::string(100, 'f')) << "the window of the first bytes";
  EXPECT_TRUE(one.release());
  EXPECT_EQ(one.given, kArea - 300);
  EXPECT_EQ(one.read(), std::string(300, 'y'));
}

TEST(Overflow, TheNextWindowWaitsForASenderThatWrites) {
  Direction one;
  one.reader.limit_window(10);
  one.append("0123456789abc");
  one.look();
  EXPECT_EQ(one.read(), "0123456789");
  EXPECT_GT(*one.writer.begin(), 0u);
  EXPECT_FALSE(one.release()) << "the sender has the gate";
  EXPECT_EQ(one.reader.readable(), 0u);
  one.writer.put(std::as_bytes(std::span("def", 3)));
  EXPECT_TRUE(one.writer.end(0)) << "its message makes the owner look";
  one.look();
  EXPECT_EQ(one.read(), "abcdef");
}

TEST(Overflow, NoWindowWaitsForASenderThatHasDied) {
  Direction one;
  one.reader.limit_window(10);
  one.append("0123456789abc");
  one.look();
  one.read();
  EXPECT_GT(*one.writer.begin(), 0u);
  EXPECT_TRUE(one.reader.release([](std::span<std::byte>) {}, true));
  EXPECT_EQ(one.read(), "abc");
}

TEST(Overflow, AHostileSenderIsRefused) {
  for (const std::uint64_t written : {kArea + 1, std::size_t{1} << 63, SIZE_MAX}) {
    Direction one;
    one.owners.written.store(written);
    EXPECT_FALSE(one.reader.look(0)) << written;
    EXPECT_EQ(one.reader.readable(), 0u);
  }
  Direction back;
  back.append("abc");
  back.look();
  back.owners.written.store(1);
  EXPECT_FALSE(back.reader.look(0)) << "fewer than before";
}

/// Otherwise each byte could be in a page of its own.
TEST(Overflow, ASenderThatBeginsAnywhereIsRefused) {
  Direction one;
  one.append("abc");
  one.look();
  EXPECT_EQ(one.read(), "abc");
  one.append("def");
  one.owners.base.store(std::uint64_t{3} - 8192);
  EXPECT_FALSE(one.reader.look(0));
  EXPECT_EQ(one.reader.readable(), 0u);
}

TEST(Overflow, AHostileOwnerIsRefused) {
  Direction ahead;
  ahead.append("abc");
  ahead.senders.read.store(4);
  EXPECT_FALSE(ahead.writer.begin());
  EXPECT_FALSE(ahead.writer.leave());
  Direction back;
  back.append("abc");
  back.senders.read.store(2);
  EXPECT_TRUE(back.writer.begin());
  back.senders.read.store(1);
  EXPECT_FALSE(back.writer.begin());
}

TEST(Overflow, TwoThreadsPassEverythingOn) {
  Direction one(4096);
  constexpr std::uint64_t kTotal = 4'000'000;
  std::atomic<std::uint32_t> looks_sent{0};
  std::thread sender([&] {
    std::uint64_t sent = 0;
    while (sent < kTotal) {
      const auto room = one.writer.begin();
      ASSERT_TRUE(room);
      if (*room == 0) {
        std::this_thread::yield();
        continue;
      }
      std::vector<std::byte> bytes(std::min<std::uint64_t>({*room, kTotal - sent, 1 + sent % 700}));
      for (auto& byte : bytes) byte = static_cast<std::byte>(sent++ * 7);
      one.writer.put(bytes);
      if (one.writer.end(0)) looks_sent.fetch_add(1);
    }
  });
  std::uint64_t read = 0;
  std::uint32_t looks_seen = 0;
  bool right = true;
  while (read < kTotal) {
    if (looks_sent.load() != looks_seen) {
      ++looks_seen;
      ASSERT_TRUE(one.reader.look(0));
      one.release();
    }
    if (one.reader.readable() == 0) std::this_thread::yield();
    while (one.reader.readable() > 0) {
      const auto piece = one.reader.peek();
      for (const std::byte byte : piece) right = right && byte == static_cast<std::byte>(read++ * 7);
      one.reader.consume(piece.size());
      one.reader.give_back([](std::span<std::byte> area) { std::fill(area.begin(), area.end(), std::byte{0}); });
    }
  }
  sender.join();
  EXPECT_TRUE(right);
}

}  // namespace
}  // namespace ringsock::engine
