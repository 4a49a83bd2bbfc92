// Datagrams that come in pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/refusals.h"
#include "librsocket/datagram/pieces.h"

namespace ringsock::rs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kPiece = 128;
constexpr std::uint32_t kQueuePair = 7;
const SocketAddress kAlice = SocketAddress::v4(0x0a070001, 5);
const SocketAddress kBob = SocketAddress::v4(0x0a070002, 5);

std::uint64_t malformed() { return refusals_counted(Refusal::datagram); }
std::uint64_t lost() { return refusals_counted(Refusal::receive_buffer); }

/// A datagram of a sender, and its pieces.
class Datagram {
 public:
  Datagram(std::uint32_t number, std::size_t bytes, const SocketAddress& source = kAlice)
      : number_(number), source_(source), text_(bytes, '\0') {
    for (std::size_t i = 0; i < bytes; ++i) text_[i] = static_cast<char>('a' + (i * 7 + number) % 26);
  }
  [[nodiscard]] wire::ParsedRsFragment piece(std::size_t index) const {
    const auto all = std::as_bytes(std::span(text_));
    const std::size_t offset = index * kPiece;
    return {source_, number_, text_.size(), kPiece, index, all.subspan(offset, std::min(kPiece, all.size() - offset))};
  }
  [[nodiscard]] std::size_t pieces() const { return (text_.size() + kPiece - 1) / kPiece; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::uint32_t number_;
  SocketAddress source_;
  std::string text_;
};

std::string text_of(const std::optional<Pieces::Whole>& whole) {
  return whole ? std::string(reinterpret_cast<const char*>(whole->memory.get()), whole->bytes) : "<not whole>";
}

/// Gives pieces in this order; what the last one made whole.
std::string give(Pieces& pieces, const Datagram& datagram, const std::vector<std::size_t>& order, Nanos now = {}) {
  std::string out = "<not whole>";
  for (const std::size_t index : order) out = text_of(pieces.add(datagram.piece(index), kQueuePair, now));
  return out;
}

TEST(DatagramPieces, MakeADatagramInAnyOrder) {
  Pieces pieces(10'000);
  const Datagram letter(1, 3 * kPiece + 5);
  EXPECT_EQ(give(pieces, letter, {0, 1, 2, 3}), letter.text());
  EXPECT_EQ(give(pieces, letter, {3, 1, 0, 2}), letter.text());
  const Datagram exact(2, 2 * kPiece);
  EXPECT_EQ(give(pieces, exact, {1, 0}), exact.text());
  const Datagram single(3, 1);
  EXPECT_EQ(give(pieces, single, {0}), single.text());
  EXPECT_EQ(pieces.under_way(), 0u);
  EXPECT_EQ(pieces.bytes(), 0u);
}

TEST(DatagramPieces, OfSeveralDatagramsAndSendersAreKeptApart) {
  Pieces pieces(10'000);
  const Datagram one(1, 2 * kPiece), two(2, 2 * kPiece), bobs(1, 2 * kPiece, kBob);
  for (const Datagram* datagram : {&one, &two, &bobs}) give(pieces, *datagram, {0});
  // The same number from another queue pair of the same address is another datagram.
  EXPECT_FALSE(pieces.add(one.piece(1), kQueuePair + 1, {}));
  EXPECT_EQ(give(pieces, bobs, {1}), bobs.text());
  EXPECT_EQ(give(pieces, two, {1}), two.text());
  EXPECT_EQ(give(pieces, one, {1}), one.text());
}

TEST(DatagramPieces, ThatComeTwiceOrContradictTheOthersAreRefused) {
  Pieces pieces(10'000);
  const Datagram letter(1, 2 * kPiece), longer(1, 3 * kPiece);
  const std::uint64_t before = malformed();
  give(pieces, letter, {0, 0});
  EXPECT_EQ(malformed() - before, 1u);
  give(pieces, longer, {2});
  EXPECT_EQ(malformed() - before, 2u);
  EXPECT_EQ(give(pieces, letter, {1}), letter.text());
}

TEST(DatagramPieces, AreGivenUpWhenTheOthersDoNotCome) {
  Pieces pieces(10'000);
  const Datagram letter(1, 2 * kPiece), next(2, 2 * kPiece);
  const std::uint64_t before = lost();
  give(pieces, letter, {0}, seconds(10));
  EXPECT_EQ(give(pieces, next, {0, 1}, seconds(10) + milliseconds(999)), next.text());
  EXPECT_EQ(pieces.under_way(), 1u);
  give(pieces, next, {0}, seconds(11));
  EXPECT_EQ(lost() - before, 1u);
  EXPECT_EQ(give(pieces, letter, {1}, seconds(11)), "<not whole>");
}

TEST(DatagramPieces, TakeNoMoreMemoryThanTheReceiveBuffer) {
  Pieces pieces(10 * kPiece);
  const std::uint64_t before = lost();
  give(pieces, Datagram(1, 11 * kPiece), {0});
  EXPECT_EQ(pieces.under_way(), 0u) << "larger than the buffer";
  EXPECT_EQ(lost() - before, 1u);
  give(pieces, Datagram(2, 6 * kPiece), {0});
  give(pieces, Datagram(3, 4 * kPiece), {0});
  give(pieces, Datagram(4, 5 * kPiece, kBob), {0});
  EXPECT_EQ(lost() - before, 2u) << "the oldest has gone";
  EXPECT_EQ(pieces.bytes(), 9 * kPiece);
}

TEST(DatagramPieces, OfManyStrangersAreBounded) {
  Pieces pieces(1 << 20);
  for (std::uint32_t i = 0; i < 10'000; ++i)
    pieces.add(Datagram(1, 2 * kPiece, SocketAddress::v4(i, 5)).piece(0), kQueuePair, {});
  EXPECT_EQ(pieces.under_way(), Pieces::kMost);
  EXPECT_EQ(pieces.bytes(), Pieces::kMost * 2 * kPiece);
}

TEST(DatagramPieces, OfOneSenderDoNotDisplaceThoseOfOthers) {
  Pieces pieces(1 << 20);
  const Datagram bobs(1, 2 * kPiece, kBob);
  give(pieces, bobs, {0});
  for (std::uint32_t i = 0; i < 1000; ++i) give(pieces, Datagram(i, 2 * kPiece), {0});
  EXPECT_EQ(pieces.under_way(), 1 + Pieces::kMostOfOne);
  EXPECT_EQ(give(pieces, bobs, {1}), bobs.text());
}

}  // namespace
}  // namespace ringsock::rs
