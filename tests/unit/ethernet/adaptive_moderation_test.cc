#include "core/ethernet/adaptive_moderation.h"

#include <gtest/gtest.h>

namespace ringsock::ethernet {
namespace {

using namespace std::chrono_literals;

/// A ring's traffic in virtual time, looked at every quarter of a second.
class AdaptiveModerationTest : public testing::Test {
 protected:
  /// A quarter of a second of traffic. Returns what it leads to.
  std::optional<Moderation> after(std::uint64_t packets, std::uint64_t bytes_each) {
    now_ += 250ms;
    packets_ += packets;
    bytes_ += packets * bytes_each;
    return moderation_.next(now_, packets_, bytes_);
  }
  Nanos now_ = 1h;
  std::uint64_t packets_ = 0, bytes_ = 0;
  AdaptiveModeration moderation_{{.interval = 250ms, .packets = 560, .period = 250us, .wake_ups_per_second = 5000}};
};

TEST_F(AdaptiveModerationTest, FewShortPacketsAreReadAtOnce) {
  EXPECT_EQ(after(1000, 64), std::nullopt) << "the first look has nothing to compare with";
  EXPECT_EQ(after(1000, 64), Moderation{});
  EXPECT_EQ(after(0, 0), Moderation{});
}

TEST_F(AdaptiveModerationTest, ManyPacketsOrLongOnesWakeAThreadFiveThousandTimesASecond) {
  after(0, 0);
  EXPECT_EQ(after(250'000, 64), (Moderation{.packets = 200, .period = 200us})) << "a million per second";
  EXPECT_EQ(after(25'000, 1400), (Moderation{.packets = 20, .period = 200us}));
  EXPECT_EQ(after(10, 64), Moderation{}) << "the traffic has ended";
}

TEST_F(AdaptiveModerationTest, NeitherBoundIsPassed) {
  AdaptiveModeration bounded({.interval = 1s, .packets = 48, .period = 50us, .wake_ups_per_second = 100});
  bounded.next(1s, 0, 0);
  EXPECT_EQ(bounded.next(2s, 1'000'000, 64'000'000), (Moderation{.packets = 48, .period = 50us}));
  AdaptiveModeration never_woken({.interval = 1s, .wake_ups_per_second = 0});
  never_woken.next(1s, 0, 0);
  EXPECT_EQ(never_woken.next(2s, 1'000'000, 64'000'000), Moderation{});
}

TEST_F(AdaptiveModerationTest, IsSetOncePerIntervalOrNever) {
  after(0, 0);
  EXPECT_FALSE(moderation_.is_due(now_ + 249ms));
  EXPECT_EQ(moderation_.next(now_ + 249ms, 1'000'000, 1), std::nullopt);
  EXPECT_TRUE(moderation_.is_due(now_ + 250ms));
  EXPECT_FALSE(AdaptiveModeration({.interval = 0s}).is_due(Nanos::max() - 1ns));
}

}  // namespace
}  // namespace ringsock::ethernet
