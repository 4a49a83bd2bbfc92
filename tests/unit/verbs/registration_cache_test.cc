#include "core/verbs/registration_cache.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/verbs/pages.h"
#include "tests/fakes/fake_device.h"

namespace ringsock::verbs {
namespace {

constexpr int kLocal = IBV_ACCESS_LOCAL_WRITE;
constexpr int kRemote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr std::size_t kPage = 4096;

struct RegistrationCacheTest : testing::Test {
  RegistrationCacheTest() : pd(std::move(*device.alloc_pd())), pages(std::move(*Pages::allocate(64 * kPage))) {}
  std::byte* page(std::size_t number) { return pages.bytes().data() + number * kPage; }
  static bool covers(const RegisteredRange& range, const std::byte* address, std::size_t length) {
    const auto* begin = static_cast<const std::byte*>(range.mr().addr);
    return begin <= address && address + length <= begin + range.mr().length;
  }
  fakes::FakeDevice device;
  Pd pd;
  Pages pages;
  RegistrationCache cache{device, *pd, {.bytes = 16 * kPage, .entries = 4}};
};

TEST_F(RegistrationCacheTest, TheSameMemoryIsRegisteredOnce) {
  std::uint32_t key = 0;
  {
    auto first = cache.get(page(0), 100, kLocal);
    ASSERT_TRUE(first);
    EXPECT_TRUE(covers(*first, page(0), 100));
    key = first->lkey();
  }
  auto second = cache.get(page(0) + 50, 200, kLocal);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->lkey(), key);
  EXPECT_EQ(device.registrations_made(), 1);
  EXPECT_EQ(cache.statistics().hits, 1u);
  EXPECT_EQ(cache.statistics().misses, 1u);
}

TEST_F(RegistrationCacheTest, OverlappingLocalRangesBecomeOne) {
  { auto first = cache.get(page(0), 2 * kPage, kLocal); }
  { auto second = cache.get(page(1), 2 * kPage, kLocal); }
  EXPECT_EQ(cache.statistics().entries, 1u);
  EXPECT_EQ(cache.statistics().bytes, 3 * kPage);
  auto whole = cache.get(page(0), 3 * kPage, kLocal);
  EXPECT_EQ(device.registrations_made(), 2);
  EXPECT_EQ(device.live_registrations(), 1);
}

TEST_F(RegistrationCacheTest, ARangeInUseSurvivesBeingMerged) {
  auto first = cache.get(page(0), 2 * kPage, kLocal);
  const auto key = first->lkey();
  auto second = cache.get(page(1), 2 * kPage, kLocal);
  EXPECT_EQ(first->lkey(), key);
  EXPECT_EQ(device.live_registrations(), 2);
  first->reset();
  EXPECT_EQ(device.live_registrations(), 1);
}

TEST_F(RegistrationCacheTest, RemoteAccessIsGrantedForTheExactBytesOnly) {
  auto small = cache.get(page(0) + 10, 100, kRemote);
  EXPECT_EQ(small->mr().addr, page(0) + 10);
  EXPECT_EQ(small->mr().length, 100u);
  auto part = cache.get(page(0) + 20, 50, kRemote);
  EXPECT_EQ(part->mr().length, 50u);
  EXPECT_NE(part->rkey(), small->rkey());
  auto same = cache.get(page(0) + 10, 100, kRemote);
  EXPECT_EQ(same->rkey(), small->rkey());
}

TEST_F(RegistrationCacheTest, DifferentAccessIsADifferentRegistration) {
  auto local = cache.get(page(0), kPage, kLocal);
  auto read_only = cache.get(page(0), kPage, 0);
  EXPECT_NE(local->lkey(), read_only->lkey());
}

TEST_F(RegistrationCacheTest, TheLeastRecentlyUsedGoesWhenThereAreTooMany) {
  for (std::size_t i = 0; i < 4; ++i) auto range = cache.get(page(2 * i), kPage, kLocal);
  { auto again = cache.get(page(0), kPage, kLocal); }
  { auto fifth = cache.get(page(20), kPage, kLocal); }
  EXPECT_EQ(cache.statistics().entries, 4u);
  EXPECT_EQ(cache.statistics().evictions, 1u);
  const int made = device.registrations_made();
  { auto kept = cache.get(page(0), kPage, kLocal); }
  EXPECT_EQ(device.registrations_made(), made);
  { auto evicted = cache.get(page(2), kPage, kLocal); }
  EXPECT_EQ(device.registrations_made(), made + 1);
}

TEST_F(RegistrationCacheTest, TheLimitInBytesHoldsToo) {
  { auto large = cache.get(page(0), 12 * kPage, kLocal); }
  { auto other = cache.get(page(20), 8 * kPage, kLocal); }
  EXPECT_EQ(cache.statistics().bytes, 8 * kPage);
}

TEST_F(RegistrationCacheTest, WhatIsInUseStaysBeyondTheLimitsUntilItIsReleased) {
  {
    auto huge = cache.get(page(0), 32 * kPage, kLocal);
    ASSERT_TRUE(huge);
    EXPECT_TRUE(covers(*huge, page(0), 32 * kPage));
    EXPECT_EQ(cache.statistics().bytes, 32 * kPage);
  }
  EXPECT_EQ(cache.statistics().bytes, 0u);
  EXPECT_EQ(device.live_registrations(), 0);
}

TEST_F(RegistrationCacheTest, InvalidatedMemoryIsRegisteredAnew) {
  auto in_use = cache.get(page(0), kPage, kLocal);
  { auto idle = cache.get(page(2), kPage, kRemote); }
  cache.invalidate(page(0) + 1, 2 * kPage);
  EXPECT_EQ(cache.statistics().entries, 0u);
  EXPECT_EQ(device.live_registrations(), 1) << "the one in use";
  auto fresh = cache.get(page(0), kPage, kLocal);
  EXPECT_NE(fresh->lkey(), in_use->lkey());
  in_use->reset();
  EXPECT_EQ(device.live_registrations(), 1);
}

TEST_F(RegistrationCacheTest, InvalidatingElsewhereChangesNothing) {
  { auto idle = cache.get(page(2), kPage, kLocal); }
  cache.invalidate(page(0), 2 * kPage);
  cache.invalidate(page(3), kPage);
  EXPECT_EQ(cache.statistics().entries, 1u);
}

TEST_F(RegistrationCacheTest, ShortPinnedMemoryMakesIdleRegistrationsGo) {
  device.set_registration_limit(4 * kPage);
  { auto idle = cache.get(page(0), 3 * kPage, kLocal); }
  auto wanted = cache.get(page(10), 3 * kPage, kLocal);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(cache.statistics().evictions, 1u);
  EXPECT_EQ(cache.get(page(20), 3 * kPage, kLocal).error().code, ENOMEM);
}

TEST_F(RegistrationCacheTest, MergingThatFailsFallsBackToWhatWasAskedFor) {
  device.set_registration_limit(6 * kPage);
  auto in_use = cache.get(page(0), 3 * kPage, kLocal);
  auto next = cache.get(page(2), 3 * kPage, kLocal);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->mr().addr, page(2));
  EXPECT_TRUE(covers(*next, page(2), 3 * kPage));
}

TEST_F(RegistrationCacheTest, NonsenseIsRefused) {
  EXPECT_EQ(cache.get(page(0), 0, kLocal).error().code, EINVAL);
  EXPECT_EQ(cache.get(page(0), SIZE_MAX, kLocal).error().code, EINVAL);
}

TEST_F(RegistrationCacheTest, ThreadsThatGetAndInvalidateAlwaysHoldWhatTheyAskedFor) {
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t id = 0; id < 4; ++id) {
      threads.emplace_back([&, id] {
        for (std::size_t round = 0; round < 2000; ++round) {
          const std::size_t first = (id * 7 + round * 5) % 40;
          const std::size_t length = (1 + round % 6) * kPage;
          auto range = cache.get(page(first), length, round % 5 == 0 ? kRemote : kLocal);
          wrong += !range || !covers(*range, page(first), length);
          if (round % 9 == 0) cache.invalidate(page(first), kPage);
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  cache.invalidate(pages.bytes().data(), pages.bytes().size());
  EXPECT_EQ(device.live_registrations(), 0);
}

}  // namespace
}  // namespace ringsock::verbs
