// The bitmap by which many connections tell one consumer of their news.
#include "core/base/ready_map.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace ringsock {
namespace {

class ReadyBitsTest : public testing::Test {
 protected:
  std::vector<std::uint32_t> taken(std::uint32_t limit = ReadyBits::kPlaces) {
    std::vector<std::uint32_t> places;
    bits_->take(limit, [&](std::uint32_t place) { places.push_back(place); });
    return places;
  }
  /// A message of the connection at this place. Returns whether its producer rings.
  bool set(std::uint32_t place) { return bits_->set(place, rung_for_[place]); }

  std::map<std::uint32_t, ReadyBits::RungFor> rung_for_;
  const std::unique_ptr<ReadyBits> bits_ = std::make_unique<ReadyBits>();
};

using Places = std::vector<std::uint32_t>;

TEST_F(ReadyBitsTest, EachPlaceWithNewsIsTakenOnceHoweverOftenItWasSet) {
  for (const std::uint32_t place : {70U, 3U, 65'535U, 70U, 4'096U}) EXPECT_FALSE(set(place)) << "nobody sleeps";
  EXPECT_EQ(taken(), (Places{3, 70, 4'096, 65'535}));
  EXPECT_EQ(taken(), Places{});
}

TEST_F(ReadyBitsTest, EachConnectionRingsOnceForAConsumerThatSleeps) {
  bits_->will_sleep();
  EXPECT_TRUE(set(1));
  EXPECT_FALSE(set(1)) << "it has rung";
  EXPECT_TRUE(set(2)) << "the doorbell of the first one may have been closed";
  bits_->is_awake();
  EXPECT_FALSE(set(3));
}

TEST_F(ReadyBitsTest, ABitThatSomebodyElseHasSetDoesNotMeanThatSomebodyHasRung) {
  bits_->will_sleep();
  ReadyBits::RungFor of_closed_connection = 0;
  EXPECT_TRUE(bits_->set(5, of_closed_connection)) << "its doorbell wakes nobody";
  EXPECT_TRUE(set(5)) << "the connection that has the place now rings for itself";
}

TEST_F(ReadyBitsTest, EachSleepIsRungForAnewAlsoWhileOtherThreadsSleep) {
  bits_->will_sleep();
  EXPECT_TRUE(set(1));
  bits_->will_sleep();
  EXPECT_TRUE(set(1)) << "another thread sleeps now, and looked at the bits before";
  bits_->is_awake();
  bits_->will_sleep();
  EXPECT_TRUE(set(1)) << "although nobody has taken the bit";
  EXPECT_FALSE(set(1));
}

TEST_F(ReadyBitsTest, AConsumerThatIsAboutToSleepSeesWhatWasSetBefore) {
  EXPECT_FALSE(bits_->any(100));
  EXPECT_FALSE(set(99));
  bits_->will_sleep();
  EXPECT_TRUE(bits_->any(100));
}

TEST_F(ReadyBitsTest, ALookCostsNoMoreThanThePlacesThatAreInUse) {
  // A peer sets a bit far behind the last place: nobody looks there, and nobody is told of it.
  EXPECT_FALSE(set(60'000));
  EXPECT_FALSE(bits_->any(100));
  EXPECT_EQ(taken(100), Places{});
}

TEST_F(ReadyBitsTest, APlaceBeyondTheMapStaysInside) {
  EXPECT_FALSE(set(~0U));
  EXPECT_EQ(taken(), (Places{ReadyBits::kPlaces - 1}));
}

// Each producer counts up a counter and sets its bit; the consumer takes bits and notes how far it has seen each
// counter. It goes to sleep (on a flag that stands for the doorbell) whenever there is nothing.
TEST_F(ReadyBitsTest, NoNewsAreLostAmongManyProducersAndAConsumerThatSleeps) {
  constexpr std::size_t kProducers = 3;
  constexpr std::uint32_t kMessages = 20'000;
  std::array<std::atomic<std::uint32_t>, kProducers> sent{};
  std::atomic<std::uint32_t> doorbell{0};
  std::vector<std::thread> producers;
  for (std::uint32_t i = 0; i < kProducers; ++i) {
    producers.emplace_back([&, i] {
      ReadyBits::RungFor rung_for = 0;
      for (std::uint32_t n = 1; n <= kMessages; ++n) {
        sent[i].store(n, std::memory_order_release);
        if (bits_->set(i * 4'200, rung_for)) {
          doorbell.fetch_add(1);
          doorbell.notify_one();
        }
      }
    });
  }
  std::array<std::uint32_t, kProducers> seen{};
  const auto take_all = [&] {
    bits_->take(ReadyBits::kPlaces, [&](std::uint32_t place) {
      seen[place / 4'200] = sent[place / 4'200].load(std::memory_order_acquire);
    });
  };
  const auto has_all = [&] { return seen == std::array<std::uint32_t, kProducers>{kMessages, kMessages, kMessages}; };
  while (!has_all()) {
    take_all();
    if (has_all()) break;
    const std::uint32_t rung = doorbell.load();
    bits_->will_sleep();
    if (!bits_->any(ReadyBits::kPlaces)) doorbell.wait(rung);  // would hang if a wake-up were lost
    bits_->is_awake();
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace
}  // namespace ringsock
