// How the peer of a stream has ended: what it has read, and what it has said last.
#include "core/engine/stream/read_words.h"

#include <gtest/gtest.h>

namespace ringsock::engine {
namespace {

/// The words in Alice's memory, and Bob, who reads what she sends.
struct Stream {
  ReadWords alices{};
  ReadTeller bob;
  Stream() { bob.open(alices); }
  [[nodiscard]] StreamEnd end(const SentBytes& sent) const { return end_of_peer(alices, sent); }
};

TEST(EndOfPeer, IsInOrderOnceEverythingWasRead) {
  Stream stream;
  EXPECT_EQ(stream.end({0, 0, true, false}), StreamEnd::in_order);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::unread);
  stream.bob.tell(6);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::unread);
  stream.bob.tell(7);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::in_order);
  EXPECT_EQ(stream.end({7, 0, false, false}), StreamEnd::unread);
}

TEST(EndOfPeer, IsWhatThePeerHasSaidWhateverWasSentAfterwards) {
  Stream stream;
  stream.bob.tell(7);
  stream.bob.tell_end(7, false);
  EXPECT_EQ(stream.end({9, 0, false, false}), StreamEnd::in_order);
  stream.bob.tell_end(7, true);
  EXPECT_EQ(stream.end({9, 0, true, false}), StreamEnd::unread);
}

TEST(EndOfPeer, IsNotWhatAProcessHasSaidWhenAnotherOneHasReadMore) {
  Stream stream;
  stream.bob.tell_end(0, true);
  stream.bob.tell(7);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::in_order);
  stream.bob.tell_end(7, true);
  EXPECT_EQ(stream.end({7, 100, true, false}), StreamEnd::in_order);  // of the overflow area
}

TEST(EndOfPeer, IsAResetBeforeThePeerHasAcceptedWhateverWasSent) {
  Stream stream;
  stream.alices.end.store(ReadWords::kNotAccepted);
  EXPECT_EQ(stream.end({0, 0, true, false}), StreamEnd::unread);
  EXPECT_EQ(stream.end({7, 0, true, true}), StreamEnd::unread);
  EXPECT_FALSE(engine::has_got_next(stream.alices, {0, 0, true, false})) << "nobody reads the message";
  stream.bob.note_accept();
  EXPECT_EQ(stream.end({0, 0, true, false}), StreamEnd::in_order);
}

TEST(EndOfPeer, DoesNotCountWhatCameAfterTheEndOfASleeper) {
  Stream stream;
  stream.bob.tell(7);
  EXPECT_EQ(stream.end({9, 0, true, true}), StreamEnd::in_order);
}

TEST(EndOfPeer, TakesAnyNumbers) {
  Stream stream;
  stream.bob.tell(UINT64_MAX);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::unread);
  stream.alices.end.store(UINT64_MAX);
  EXPECT_EQ(stream.end({7, 0, true, false}), StreamEnd::unread);
}

// Bob sleeps, Alice puts a message behind the seven bytes, Bob wakes by himself and ends, and her bell finds nobody.
TEST(MessageThatRangInVain, HasArrivedIfBobSaysSo) {
  Stream stream;
  const SentBytes sent{7, 0, true, false};
  const auto has_got_next = [&] { return engine::has_got_next(stream.alices, sent); };
  EXPECT_FALSE(has_got_next()) << "he has said nothing, as one who was killed";
  stream.bob.tell(6);
  stream.bob.tell_end(6, true);
  EXPECT_FALSE(has_got_next()) << "he had left earlier bytes unread when he ended";
  stream.bob.tell(7);
  stream.bob.tell_end(7, false);
  EXPECT_FALSE(has_got_next()) << "he had read the earlier bytes and seen nothing else";
  stream.bob.tell_end(7, true);
  EXPECT_TRUE(has_got_next()) << "what he has left unread is the message";
  stream.bob.tell(8);
  stream.bob.tell_end(8, true);
  EXPECT_TRUE(has_got_next()) << "he has read a part of it";
}

TEST(MessageThatRangInVain, HasArrivedIfBobHasReadItAndClosesInOrder) {
  Stream stream;
  stream.bob.tell(7 + 88);
  EXPECT_TRUE(engine::has_got_next(stream.alices, {7, 0, true, false})) << "a request, which he has answered";
}

}  // namespace
}  // namespace ringsock::engine
