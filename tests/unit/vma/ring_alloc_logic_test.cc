#include "core/extra_api/ring_alloc_logic.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

namespace ringsock::vma {
namespace {

/// struct vma_ring_alloc_logic_attr.
using Attribute = std::array<std::uint32_t, 5>;
Result<RingAllocLogic> parse(const Attribute& attribute, socklen_t length = sizeof(Attribute)) {
  return parse_ring_alloc_logic(attribute.data(), length);
}

TEST(RingAllocLogicOption, ChoosesDirectionsByTheirBits) {
  const auto both = parse({4 | 8, 10, 0, 0, 1 | 2});
  ASSERT_TRUE(both);
  EXPECT_TRUE(both->for_receiving && both->for_sending);
  EXPECT_EQ(both->logic, runtime::RingLogic::per_socket);

  const auto receiving = parse({4 | 8, 20, 0, 0, 1});
  EXPECT_TRUE(receiving->for_receiving);
  EXPECT_FALSE(receiving->for_sending);

  // A field whose bit is not set does not count.
  const auto neither = parse({2, 11, 0, 5, 1 | 2});
  EXPECT_FALSE(neither->for_receiving || neither->for_sending);
  EXPECT_EQ(neither->user_id, 5u);
  EXPECT_EQ(neither->profile_key, 0u);
  EXPECT_EQ(parse({1, 0, 3, 0, 0})->profile_key, 3u);
}

TEST(RingAllocLogicOption, RefusesOtherLengthsUnknownBitsAndLogics) {
  const Attribute good{4, 10, 0, 0, 1};
  ASSERT_TRUE(parse(good));
  for (const socklen_t length : {0U, 4U, 19U, 21U, 24U}) EXPECT_EQ(parse(good, length).error().code, EINVAL);
  EXPECT_EQ(parse_ring_alloc_logic(nullptr, sizeof(Attribute)).error().code, EINVAL);
  EXPECT_EQ(parse({1 << 4, 10, 0, 0, 1}).error().code, EINVAL);
  EXPECT_EQ(parse({4, 32, 0, 0, 1}).error().code, EINVAL);
}

}  // namespace
}  // namespace ringsock::vma
