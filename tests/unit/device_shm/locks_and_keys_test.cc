#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/device/common/key_table.h"

namespace ringsock::soft {
namespace {

TEST(BiasedMutex, KeepsThreadsOutOfEachOthersWay) {
  for (int round = 0; round < 50; ++round) {
    BiasedMutex mutex;
    std::uint64_t counter = 0;
    const auto work = [&] {
      for (int i = 0; i < 2'000; ++i) {
        std::lock_guard guard(mutex);
        ++counter;
      }
    };
    std::thread first(work), second(work), third(work);
    first.join();
    second.join();
    third.join();
    ASSERT_EQ(counter, 6'000U);
  }
}

TEST(BiasedMutex, TheBiasIsTakenAwayWhileItsOwnerIsInside) {
  for (int round = 0; round < 100; ++round) {
    BiasedMutex mutex;
    { std::lock_guard first_use(mutex); }
    bool seen = false;
    std::atomic<bool> about_to_lock{false};
    mutex.lock();
    std::thread other([&] {
      about_to_lock = true;
      std::lock_guard guard(mutex);
      EXPECT_TRUE(seen);
    });
    while (!about_to_lock) std::this_thread::yield();
    // Most rounds get as far as taking the bias away meanwhile.
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    seen = true;
    mutex.unlock();
    other.join();
    // And the owner of old still gets in.
    std::lock_guard again(mutex);
  }
}

class KeyTableTest : public ::testing::Test {
 protected:
  ibv_pd pd_{}, other_pd_{};
  KeyTable keys_;
};

TEST_F(KeyTableTest, CoversExactlyItsRange) {
  const std::uint32_t key = *keys_.insert({&pd_, 1000, 100, IBV_ACCESS_REMOTE_READ});
  EXPECT_TRUE(keys_.covers(key, &pd_, 1000, 100, IBV_ACCESS_REMOTE_READ));
  EXPECT_TRUE(keys_.covers(key, &pd_, 1100, 0, 0));
  EXPECT_FALSE(keys_.covers(key, &pd_, 999, 1, 0));
  EXPECT_FALSE(keys_.covers(key, &pd_, 1000, 101, 0));
  EXPECT_FALSE(keys_.covers(key, &pd_, 1099, UINT64_MAX, 0));
  EXPECT_FALSE(keys_.covers(key, &pd_, 1000, 1, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_FALSE(keys_.covers(key, &other_pd_, 1000, 1, 0));
  EXPECT_FALSE(keys_.covers(key + 1, &pd_, 1000, 1, 0));
  EXPECT_FALSE(keys_.covers(0, &pd_, 1000, 1, 0));
  EXPECT_FALSE(keys_.covers(~0U, &pd_, 1000, 1, 0));
}

TEST_F(KeyTableTest, AStaleKeyFailsAlthoughItsPlaceIsUsedAgain) {
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 200; ++i) {
    const std::uint32_t key = *keys_.insert({&pd_, 0, 8, 0});
    EXPECT_TRUE(seen.insert(key).second);
    for (std::uint32_t old : seen) EXPECT_EQ(keys_.covers(old, &pd_, 0, 8, 0), old == key);
    keys_.remove(key);
  }
}

TEST_F(KeyTableTest, GrowsBeyondOneChunk) {
  std::vector<std::uint32_t> keys;
  for (std::uint64_t i = 0; i < 10'000; ++i) keys.push_back(*keys_.insert({&pd_, i, 1, 0}));
  for (std::uint64_t i = 0; i < 10'000; ++i) ASSERT_TRUE(keys_.covers(keys[i], &pd_, i, 1, 0));
}

}  // namespace
}  // namespace ringsock::soft
