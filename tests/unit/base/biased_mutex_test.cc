#include "core/base/biased_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

namespace ringsock {
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

TEST(BiasedMutex, IsLockedOutTogetherWithOthersAsForkNeedsIt) {
  BiasedMutex first, second;
  { std::scoped_lock first_use(first, second); }
  for (BiasedMutex* const one : {&first, &second}) one->lock_out_begin();
  BiasedMutex::lock_out_barrier();
  for (BiasedMutex* const one : {&first, &second}) one->lock_out_finish();
  std::atomic<bool> is_inside{false};
  std::thread other([&] {
    std::scoped_lock both(first, second);
    is_inside = true;
  });
  for (int i = 0; i < 20; ++i) std::this_thread::yield();
  EXPECT_FALSE(is_inside);
  for (BiasedMutex* const one : {&first, &second}) one->let_in(false);
  other.join();
  EXPECT_TRUE(is_inside);
}

}  // namespace
}  // namespace ringsock
