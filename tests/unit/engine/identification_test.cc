#include "core/engine/ip/identification.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace ringsock::engine {
namespace {

using wire::Be32;

constexpr Be32 kAlice{0x0a000001}, kBob{0x0a000002};
constexpr std::array<std::uint64_t, 4> kSecret{1, 2, 3, 4};

TEST(KeyedHash, HasTheValuesOfSipHashsAuthors) {
  std::array<std::byte, 15> message;
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  const std::array<std::uint64_t, 2> key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  EXPECT_EQ(keyed_hash(key, {}), 0x726fdb47dd0e0e31u);
  EXPECT_EQ(keyed_hash(key, std::span(message).first(1)), 0x74f839c593dc67fdu);
  EXPECT_EQ(keyed_hash(key, message), 0xa129ca6149be45e5u);
}

TEST(IdentificationNumbers, OfAFlowComeAgainOnlyAfterAFullRound) {
  IdentificationNumbers numbers(kSecret);
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 65536; ++i) ASSERT_TRUE(seen.insert(numbers.next(kAlice, kBob, 17)).second) << i;
}

TEST(IdentificationNumbers, OfIpv6DoNotWrapAt16Bits) {
  IdentificationNumbers numbers(kSecret);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 70000; ++i) ASSERT_TRUE(seen.insert(numbers.next({1}, {2})).second) << i;
}

TEST(IdentificationNumbers, OfOneFlowDoNotTellThoseOfAnother) {
  IdentificationNumbers numbers(kSecret);
  // Flows to 256 destinations: their first numbers neither agree nor follow each other.
  std::set<std::uint32_t> starts;
  int neighbours = 0;
  std::uint32_t previous = 0;
  for (std::uint8_t host = 0; host < 255; ++host) {
    const std::uint32_t start = numbers.next({1}, {2, host});
    neighbours += start - previous <= 1000 ? 1 : 0;
    starts.insert(previous = start);
  }
  EXPECT_EQ(starts.size(), 255u);
  EXPECT_LE(neighbours, 1);
}

TEST(IdentificationNumbers, OfAnotherSecretAreOthers) {
  IdentificationNumbers ours(kSecret), theirs({5, 6, 7, 8});
  EXPECT_NE(ours.next({1}, {2}), theirs.next({1}, {2}));
}

TEST(IdentificationNumbers, AreGivenOutOnceByAllThreads) {
  constexpr int kThreads = 4, kEach = 5000;
  auto numbers = std::make_unique<IdentificationNumbers>(kSecret);
  std::array<std::vector<std::uint32_t>, kThreads> taken;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : taken) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) mine.push_back(numbers->next(kAlice, kBob, 17));
      });
    }
  }
  std::set<std::uint32_t> all;
  for (const auto& mine : taken) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), std::size_t{kThreads} * kEach);
}

}  // namespace
}  // namespace ringsock::engine
