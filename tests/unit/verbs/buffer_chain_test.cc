#include "core/verbs/buffer_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/verbs/buffer_pool.h"

namespace ringsock::verbs {
namespace {

struct BufferChainTest : testing::Test {
  /// A chain with one segment per text, each in the middle of a buffer of its own.
  BufferChain chain_of(const std::vector<std::string>& texts) {
    BufferChain chain;
    for (const std::string& text : texts) {
      BufferRef buffer = std::move(*pool->take());
      std::copy(text.begin(), text.end(), reinterpret_cast<char*>(buffer.bytes().data()) + 8);
      chain.append(std::move(buffer), 8, static_cast<std::uint32_t>(text.size()));
    }
    return chain;
  }
  static std::string text_of(const BufferChain& chain) {
    std::string out(chain.size_bytes(), '?');
    EXPECT_EQ(chain.copy_to(std::as_writable_bytes(std::span(out))), out.size());
    return out;
  }
  [[nodiscard]] std::size_t buffers_in_use() const { return pool->statistics().in_use; }

  std::unique_ptr<BufferPool> pool =
      std::move(*BufferPool::create(nullptr, nullptr, {.buffer_bytes = 64, .slab_bytes = 4096, .limit_bytes = 4096}));
};

TEST_F(BufferChainTest, KeepsTheOrderOfItsSegments) {
  const auto chain = chain_of({"ring", "sock", "ets"});
  EXPECT_EQ(text_of(chain), "ringsockets");
  EXPECT_EQ(chain.segments().size(), 3u);
}

TEST_F(BufferChainTest, EmptySegmentsAreNotKept) {
  auto chain = chain_of({"", "a", ""});
  EXPECT_EQ(chain.segments().size(), 1u);
  EXPECT_EQ(buffers_in_use(), 1u);
}

TEST_F(BufferChainTest, TrimmingTheFrontReleasesBuffersThatAreUsedUp) {
  auto chain = chain_of({"ring", "sock", "ets"});
  chain.trim_front(5);
  EXPECT_EQ(text_of(chain), "ockets");
  EXPECT_EQ(buffers_in_use(), 2u);
  chain.trim_front(100);
  EXPECT_TRUE(chain.empty());
  EXPECT_EQ(buffers_in_use(), 0u);
}

TEST_F(BufferChainTest, TrimmingTheBackReleasesBuffersThatAreUsedUp) {
  auto chain = chain_of({"ring", "sock", "ets"});
  chain.trim_back(4);
  EXPECT_EQ(text_of(chain), "ringsoc");
  EXPECT_EQ(buffers_in_use(), 2u);
  chain.trim_back(100);
  EXPECT_TRUE(chain.empty());
  EXPECT_EQ(buffers_in_use(), 0u);
}

TEST_F(BufferChainTest, SplittingSharesTheBufferThatIsCut) {
  auto chain = chain_of({"ring", "sock", "ets"});
  BufferChain front = chain.split_front(6);
  EXPECT_EQ(text_of(front), "ringso");
  EXPECT_EQ(text_of(chain), "ckets");
  EXPECT_EQ(buffers_in_use(), 3u);
  front.clear();
  EXPECT_EQ(buffers_in_use(), 2u);
}

TEST_F(BufferChainTest, CopiesShareTheBuffers) {
  auto chain = chain_of({"ring", "sock"});
  const BufferChain copy = chain;
  chain.clear();
  EXPECT_EQ(text_of(copy), "ringsock");
  EXPECT_EQ(buffers_in_use(), 2u);
}

TEST_F(BufferChainTest, SlicesAreCutAtTheEnd) {
  const auto chain = chain_of({"ring", "sock", "ets"});
  EXPECT_EQ(text_of(chain.slice(2, 4)), "ngso");
  EXPECT_EQ(text_of(chain.slice(8, 100)), "ets");
  EXPECT_TRUE(chain.slice(11, 1).empty());
}

TEST_F(BufferChainTest, AppendingAChainMovesItsSegments) {
  auto chain = chain_of({"ring"});
  auto other = chain_of({"x", "sock", "ets"});
  other.trim_front(1);
  chain.append(std::move(other));
  EXPECT_EQ(text_of(chain), "ringsockets");
  EXPECT_EQ(buffers_in_use(), 3u);
}

TEST_F(BufferChainTest, GathersFromTheMiddleUntilTheListIsFull) {
  const auto chain = chain_of({"ring", "sock", "ets"});
  std::array<ibv_sge, 2> list{};
  const auto gathered = chain.gather(list, 2);
  EXPECT_EQ(gathered.entries, 2u);
  EXPECT_EQ(gathered.bytes, 6u);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(list[0].addr), list[0].length), "ng");
  EXPECT_EQ(std::string(reinterpret_cast<char*>(list[1].addr), list[1].length), "sock");
  EXPECT_EQ(chain.gather(list, 2, 3).bytes, 3u);
  EXPECT_EQ(chain.gather(list, 11).entries, 0u);
}

TEST_F(BufferChainTest, AQueueThatIsFilledAndDrainedForLongStaysRight) {
  BufferChain queue;
  std::string expected;
  std::string drained;
  for (int round = 0; round < 500; ++round) {
    const std::string text = std::to_string(round) + ",";
    expected += text;
    queue.append(chain_of({text}));
    if (round % 3 == 2) drained += text_of(queue.split_front(queue.size_bytes() - 2));
  }
  drained += text_of(queue);
  EXPECT_EQ(drained, expected);
}

}  // namespace
}  // namespace ringsock::verbs
