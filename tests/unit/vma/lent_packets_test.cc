// What the program has of the rings' buffers is counted, and what it gives back is looked up.
#include "core/extra_api/lent_packets.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "core/verbs/buffer_pool.h"

namespace ringsock::vma {
namespace {

class LentPacketsTest : public testing::Test {
 protected:
  LentPacketsTest() {
    auto pool = verbs::BufferPool::create(
        nullptr, nullptr, {.buffer_bytes = 64, .slab_bytes = 1 << 16, .limit_bytes = 1 << 20, .access = 0});
    pool_ = *std::move(pool);
  }
  ~LentPacketsTest() override {
    EXPECT_EQ(lent_packets().count(), 0U);
    EXPECT_EQ(pool_->statistics().in_use, 0U);
  }
  LentPacket* lend(std::uint32_t lender) {
    auto buffer = pool_->take();
    if (!buffer) return nullptr;
    const auto bytes = buffer->bytes();
    return lent_packets().lend(lender, *std::move(buffer), bytes.first(10));
  }
  std::unique_ptr<verbs::BufferPool> pool_;
  const std::uint32_t lender_ = lent_packets().next_lender();
};

TEST_F(LentPacketsTest, APacketIsTakenBackOnceByItsLender) {
  LentPacket* const packet = lend(lender_);
  ASSERT_NE(packet, nullptr);
  EXPECT_EQ(packet->buffer.len, 10);
  EXPECT_EQ(pool_->statistics().in_use, 1U);
  EXPECT_FALSE(lent_packets().take_back(lent_packets().next_lender(), packet));
  EXPECT_TRUE(lent_packets().take_back(lender_, packet));
  EXPECT_FALSE(lent_packets().take_back(lender_, packet));
}

TEST_F(LentPacketsTest, WhatIsNoPacketIsRefused) {
  LentPacket* const packet = lend(lender_);
  int local = 0;
  for (const void* bad :
       {static_cast<const void*>(nullptr), static_cast<const void*>(&local), static_cast<const void*>(&packet->state),
        static_cast<const void*>(packet + 1), static_cast<const void*>(packet + (1 << 20)),
        reinterpret_cast<const void*>(~std::uintptr_t{0})}) {
    EXPECT_FALSE(lent_packets().take_back(lender_, bad));
    EXPECT_FALSE(lent_packets().add_reference(bad));
    EXPECT_FALSE(lent_packets().drop_reference(bad));
    EXPECT_FALSE(lent_packets().drop_list(bad));
  }
  EXPECT_FALSE(lent_packets().add_reference(packet)) << "a socket's";
  EXPECT_TRUE(lent_packets().take_back(lender_, packet));
}

TEST_F(LentPacketsTest, ReferencesAreCounted) {
  LentPacket* const packet = lend(LentPackets::kNobody);
  EXPECT_EQ(lent_packets().add_reference(packet), 2);
  EXPECT_EQ(lent_packets().drop_reference(packet), 1);
  EXPECT_EQ(pool_->statistics().in_use, 1U);
  EXPECT_EQ(lent_packets().drop_reference(packet), 0);
  EXPECT_EQ(pool_->statistics().in_use, 0U);
  EXPECT_FALSE(lent_packets().drop_reference(packet));
}

TEST_F(LentPacketsTest, ALenderGetsAllOfItsOwnBackAndThePoolIsWhole) {
  std::set<LentPacket*> packets;
  LentPacket* const others = lend(lent_packets().next_lender());
  for (LentPacket* one = nullptr; (one = lend(lender_)) != nullptr;) packets.insert(one);
  EXPECT_EQ(packets.size() + 1, pool_->statistics().buffers) << "until the pool is empty";
  EXPECT_GT(packets.size(), 10'000U) << "several chunks of places";
  lent_packets().take_all_back(lender_);
  EXPECT_EQ(pool_->statistics().in_use, 1U);
  EXPECT_EQ(lent_packets().count(), 1U);
  EXPECT_FALSE(lent_packets().take_back(lender_, *packets.begin()));
  EXPECT_TRUE(lent_packets().take_back(static_cast<std::uint32_t>(others->state.load() >> 32), others));
}

class LentLists : public LentPacketsTest {
 protected:
  /// A packet of several buffers, as the program gets it.
  std::vector<LentPacket*> lend_list(std::size_t buffers) {
    std::vector<LentPacket*> out;
    for (std::size_t i = 0; i < buffers; ++i) {
      out.push_back(lend(LentPackets::kNobody));
      if (i > 0) LentPackets::chain(*out[i - 1], *out[i]);
    }
    return out;
  }
};

TEST_F(LentLists, AListIsFreedAsAWhole) {
  const auto list = lend_list(LentPackets::kMostInList);
  EXPECT_EQ(list[0]->buffer.next, &list[1]->buffer);
  EXPECT_TRUE(lent_packets().drop_list(list[0]));
  EXPECT_FALSE(lent_packets().drop_list(list[0])) << "twice";
}

TEST_F(LentLists, WhatTheProgramWritesToAListDoesNotMatter) {
  const auto list = lend_list(3);
  list[0]->buffer.next = reinterpret_cast<vma_buff_t*>(8);
  list[1]->buffer.next = &list[0]->buffer;
  EXPECT_TRUE(lent_packets().drop_list(list[0]));
}

TEST_F(LentLists, ABufferWithAnotherReferenceStays) {
  const auto list = lend_list(3);
  EXPECT_EQ(lent_packets().add_reference(list[1]), 2);
  EXPECT_TRUE(lent_packets().drop_list(list[0]));
  EXPECT_EQ(lent_packets().count(), 1U);
  EXPECT_EQ(lent_packets().drop_reference(list[1]), 0);
}

TEST_F(LentLists, ABufferThatWasFreedBeforeLeavesNoOtherBehind) {
  const auto list = lend_list(4);
  EXPECT_EQ(lent_packets().drop_reference(list[1]), 0);
  EXPECT_FALSE(lent_packets().drop_list(list[0])) << "one too many";
}

TEST_F(LentLists, APlaceThatWasInAListIsAloneWhenItIsLentAgain) {
  const auto list = lend_list(2);
  EXPECT_TRUE(lent_packets().drop_list(list[0]));
  LentPacket* const first = lend(LentPackets::kNobody);
  LentPacket* const second = lend(LentPackets::kNobody);
  EXPECT_TRUE(lent_packets().drop_list(first));
  EXPECT_EQ(lent_packets().count(), 1U);
  EXPECT_TRUE(lent_packets().drop_list(second));
}

TEST_F(LentPacketsTest, ThreadsLendAndGiveBackAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      const std::uint32_t lender = lent_packets().next_lender();
      std::array<LentPacket*, 32> held{};
      for (int round = 0; round < 500; ++round) {
        for (LentPacket*& one : held) one = lend(lender);
        for (LentPacket* const one : held) EXPECT_TRUE(one != nullptr && lent_packets().take_back(lender, one));
      }
    });
  }
  for (std::thread& one : threads) one.join();
}

TEST_F(LentPacketsTest, OfTwoThreadsOneDropsTheLastReference) {
  for (int round = 0; round < 500; ++round) {
    LentPacket* const packet = lend(LentPackets::kNobody);
    std::atomic<int> dropped{0};
    const auto drop = [&] { dropped += lent_packets().drop_reference(packet) ? 1 : 0; };
    std::thread other(drop);
    drop();
    other.join();
    EXPECT_EQ(dropped, 1);
  }
}

}  // namespace
}  // namespace ringsock::vma
