#include "core/extra_api/shared_rings.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace ringsock::vma {
namespace {

using runtime::RingKey;
using runtime::RingLogic;

RingKey number(std::uint64_t id) { return {RingLogic::per_user_id, {id, 0}}; }

/// Uses of rings that end with the test.
class Uses {
 public:
  Uses() = default;
  Uses(const Uses&) = delete;
  Uses& operator=(const Uses&) = delete;
  ~Uses() {
    for (SharedRing* const one : rings_) shared_rings().leave(*one);
  }
  SharedRing* enter(const RingKey& key, std::size_t most_rings = 0) {
    const auto ring = shared_rings().enter(key, most_rings);
    if (!ring) return nullptr;
    rings_.push_back(*ring);
    return *ring;
  }

 private:
  std::vector<SharedRing*> rings_;
};

TEST(SharedRings, EqualKeysHaveOneRing) {
  Uses uses;
  SharedRing* const seven = uses.enter(number(7));
  ASSERT_NE(seven, nullptr);
  EXPECT_EQ(uses.enter(number(7)), seven);
  EXPECT_NE(uses.enter(number(8)), seven);
}

TEST(SharedRings, AtTheLimitASocketSharesTheRingWithTheFewestUsers) {
  Uses uses;
  SharedRing* const busy = uses.enter(number(1));
  uses.enter(number(1));
  SharedRing* const quiet = uses.enter(number(2));
  EXPECT_EQ(uses.enter(number(3), 2), quiet);
  EXPECT_EQ(uses.enter(number(1), 2), busy) << "its own";
  EXPECT_NE(uses.enter(number(4), 3), busy);
}

TEST(SharedRings, ARingThatDoesNotLastEndsWithItsLastUser) {
  const auto ring = shared_rings().enter(number(5), 0);
  ASSERT_TRUE(ring);
  const std::uint64_t before = (*ring)->number();
  shared_rings().enter_again(**ring);
  shared_rings().leave(**ring);
  EXPECT_EQ((*ring)->number(), before);
  shared_rings().leave(**ring);
  EXPECT_NE((*ring)->number(), before);
}

TEST(SharedRings, ARingOfAnAddressLasts) {
  const RingKey key{RingLogic::per_ip, {1, 2}};
  const auto ring = shared_rings().enter(key, 0);
  ASSERT_TRUE(ring);
  const std::uint64_t before = (*ring)->number();
  shared_rings().leave(**ring);
  Uses uses;
  EXPECT_EQ(uses.enter(key), *ring);
  EXPECT_EQ((*ring)->number(), before);
}

TEST(SharedRings, RingsThatHaveEndedAreUsedAgain) {
  std::set<SharedRing*> seen;
  for (std::uint64_t id = 100; id < 200; ++id) {
    Uses uses;
    seen.insert(uses.enter(number(id)));
  }
  EXPECT_LT(seen.size(), 20U) << "as many as there were at once, in other tests, too";
}

}  // namespace
}  // namespace ringsock::vma
