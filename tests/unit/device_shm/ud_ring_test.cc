// A ring of datagrams in shared memory: its two ends, and a sender that writes what it likes.
#include "core/device/shm/queue/ud_ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/shm/queue/ud_routes.h"

namespace ringsock::soft {
namespace {

struct Ring {
  Ring() : Ring(*make_segment(kUdSegmentBytes)) {}
  explicit Ring(OwnSegment made)
      : memory(std::move(made.memfd)), segment(std::move(made.mapping)), writer(segment), reader(segment) {}
  UdRingWriter::Put put(std::string_view text) {
    DatagramHeader header{};
    header.version = kDatagramVersion;
    header.source_qpn = 77;
    const iovec part{const_cast<char*>(text.data()), text.size()};
    return writer.put(header, {&part, 1}, text.size());
  }
  std::string take() {
    const auto got = reader.front();
    if (!got) return "<error>";
    if (!*got) return "<empty>";
    std::string text(reinterpret_cast<const char*>((*got)->payload.data()), (*got)->payload.size());
    reader.pop();
    return text;
  }
  UdRingLines& lines() { return *reinterpret_cast<UdRingLines*>(segment->base()); }
  std::byte* data() { return segment->base() + kPageBytes; }

  UniqueFd memory;
  std::shared_ptr<MappedSegment> segment;
  UdRingWriter writer;
  UdRingReader reader;
};

TEST(UdRing, GivesDatagramsInOrder) {
  Ring ring;
  EXPECT_EQ(ring.take(), "<empty>");
  ring.put("one");
  ring.put("");
  ring.put("three");
  EXPECT_EQ(ring.take(), "one");
  EXPECT_EQ(ring.take(), "");
  EXPECT_EQ(ring.take(), "three");
  EXPECT_TRUE(ring.reader.is_empty());
}

TEST(UdRing, GoesRoundItsMemoryWithDatagramsOfAllSizes) {
  Ring ring;
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    const std::string text(random() % (kMaxDatagramBytes + 1), static_cast<char>('a' + i % 26));
    ASSERT_EQ(ring.put(text), UdRingWriter::Put::done);
    ASSERT_EQ(ring.take(), text) << i;
  }
}

TEST(UdRing, LosesAndCountsWhatHasNoRoom) {
  Ring ring;
  const std::string large(kMaxDatagramBytes, 'x');
  int put = 0;
  while (ring.put(large) == UdRingWriter::Put::done) ++put;
  EXPECT_GT(put, 50);
  EXPECT_EQ(ring.put(large), UdRingWriter::Put::full);
  EXPECT_EQ(ring.reader.lost(), 2u);
  EXPECT_EQ(ring.reader.lost(), 0u);
  EXPECT_EQ(ring.take(), large);
  EXPECT_EQ(ring.put(large), UdRingWriter::Put::done);
}

TEST(UdRing, RingsOnceForAnArmedReader) {
  Ring ring;
  ring.put("a");
  EXPECT_FALSE(ring.writer.must_ring());
  ring.reader.arm();
  ring.put("b");
  EXPECT_TRUE(ring.writer.must_ring());
  ring.put("c");
  EXPECT_FALSE(ring.writer.must_ring());
}

TEST(UdRing, TellsOfItsEnds) {
  Ring ring;
  ring.writer.end();
  EXPECT_TRUE(ring.reader.has_ended());
  ring.reader.close();
  EXPECT_EQ(ring.put("b"), UdRingWriter::Put::closed);
}

TEST(UdRing, OfAHostileSenderIsAnErrorAndNeverReadBeyondItsMemory) {
  for (const std::uint64_t tail : {1ul, 63ul, kUdRingBytes + 64, ~0ul, ~0ul - 63}) {
    Ring ring;
    ring.lines().tail = tail;
    EXPECT_EQ(ring.take(), "<error>") << tail;
  }
  std::minstd_rand engine(11);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 3000; ++round) {
    Ring ring;
    auto* words = reinterpret_cast<std::uint32_t*>(ring.data());
    const std::uint32_t lengths[] = {random(), ~0u, random() % 5000, kMaxDatagramBytes + 1};
    for (int i = 0; i < 64; ++i) words[16 * i] = lengths[random() % 4];
    ring.lines().tail = 64 * (random() % 4096);
    for (int i = 0; i < 100; ++i) {
      const std::string text = ring.take();
      if (text == "<error>" || text == "<empty>") break;
      ASSERT_LE(text.size(), kMaxDatagramBytes);
    }
  }
}

TEST(UdIncoming, TakesWhatIsInARingBeyondTheLimitWhoseSenderSeesItClosed) {
  UdIncoming incoming;
  const auto add = [&](const Ring& ring) { return incoming.add(UniqueFd(::dup(ring.memory.get())), 5); };
  const auto take = [&] {
    std::vector<std::string> texts;
    incoming.take(100, [&](const ParsedDatagram& one) {
      texts.emplace_back(reinterpret_cast<const char*>(one.payload.data()), one.payload.size());
    });
    return texts;
  };
  Ring usual;
  for (std::size_t i = 0; i < UdIncoming::kMost; ++i) ASSERT_TRUE(add(usual));
  Ring surplus;
  surplus.put("on its way");
  ASSERT_TRUE(add(surplus));
  EXPECT_EQ(surplus.put("too late"), UdRingWriter::Put::closed);
  EXPECT_EQ(take(), std::vector<std::string>{"on its way"});

  for (std::size_t i = 0; i < 10 * UdIncoming::kMost; ++i) {
    Ring another;
    ASSERT_TRUE(add(another)) << "surplus rings do not stay";
    if (i % 100 == 0) take();
  }
}

}  // namespace
}  // namespace ringsock::soft
