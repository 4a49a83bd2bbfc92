#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "core/device/common/key_table.h"

namespace ringsock::soft {
namespace {

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
