#include "core/verbs/buffer_pool.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/fakes/fake_device.h"

namespace ringsock::verbs {
namespace {

/// Two buffers of 1 KiB in a slab, three slabs at most.
constexpr BufferPoolOptions kTiny{.buffer_bytes = 1024, .slab_bytes = 2048, .limit_bytes = 6144};

struct BufferPoolTest : testing::Test {
  BufferPoolTest() : pd(std::move(*device.alloc_pd())) {}
  std::unique_ptr<BufferPool> pool_of(const BufferPoolOptions& options) {
    return std::move(*BufferPool::create(&device, pd.get(), options));
  }
  fakes::FakeDevice device;
  Pd pd;
};

TEST(Pages, AreZeroedAndWritable) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{2} << 20, std::size_t{5} << 20}) {
    auto pages = Pages::allocate(bytes);
    ASSERT_TRUE(pages);
    ASSERT_GE(pages->bytes().size(), bytes);
    EXPECT_EQ(pages->bytes().front(), std::byte{0});
    EXPECT_EQ(pages->bytes().back(), std::byte{0});
    std::memset(pages->bytes().data(), 0x5a, pages->bytes().size());
  }
}

TEST(Pages, LargeOnesAreAlignedForHugePages) {
  auto pages = Pages::allocate(std::size_t{4} << 20);
  ASSERT_TRUE(pages);
  if (pages->backing() == PageBacking::small) GTEST_SKIP() << "the kernel has no huge pages at all";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages->bytes().data()) % (2 << 20), 0u);
}

/// An application's allocator, whose memory is not aligned for buffers.
struct CountingAllocator {
  static void* allocate(std::size_t bytes) {
    ++given;
    return static_cast<char*>(std::malloc(bytes + 8)) + 8;
  }
  static void* refuse(std::size_t) { return nullptr; }
  static void release(void* memory) {
    --given;
    std::free(static_cast<char*>(memory) - 8);
  }
  static inline int given = 0;
};

TEST_F(BufferPoolTest, SlabsComeFromTheApplicationAndGoBackToIt) {
  BufferPoolOptions options = kTiny;
  options.memory = {.allocate = CountingAllocator::allocate, .release = CountingAllocator::release};
  {
    auto pool = pool_of(options);
    std::vector<BufferRef> buffers(4);
    ASSERT_EQ(pool->take(buffers), 4u);
    EXPECT_EQ(CountingAllocator::given, 2) << "one call for each slab";
    for (const BufferRef& one : buffers) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.bytes().data()) % 64, 0u);
      std::memset(one.bytes().data(), 0x5a, one.bytes().size());
    }
    EXPECT_EQ(pool->statistics().backing, PageBacking::users);
  }
  EXPECT_EQ(CountingAllocator::given, 0);
}

TEST_F(BufferPoolTest, AnApplicationThatHasNoMemoryGetsNoBuffers) {
  BufferPoolOptions options = kTiny;
  options.memory = {.allocate = CountingAllocator::refuse, .release = CountingAllocator::release};
  EXPECT_EQ(pool_of(options)->take().error().code, ENOMEM);
}

TEST_F(BufferPoolTest, NothingIsMappedBeforeTheFirstBuffer) {
  auto pool = pool_of(kTiny);
  EXPECT_EQ(pool->statistics().bytes, 0u);
  EXPECT_EQ(device.live_registrations(), 0);
}

TEST_F(BufferPoolTest, BuffersAreDisjointWritableAndRegistered) {
  auto pool = pool_of(kTiny);
  std::vector<BufferRef> buffers(6);
  ASSERT_EQ(pool->take(buffers), 6u);
  std::set<std::byte*> starts;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].bytes().size(), 1024u);
    EXPECT_NE(buffers[i].lkey(), 0u);
    std::memset(buffers[i].bytes().data(), static_cast<int>(i), 1024);
    starts.insert(buffers[i].bytes().data());
  }
  EXPECT_EQ(starts.size(), 6u);
  for (std::size_t i = 0; i < buffers.size(); ++i) EXPECT_EQ(buffers[i].bytes()[1023], static_cast<std::byte>(i));
  EXPECT_EQ(device.live_registrations(), 3);
}

TEST_F(BufferPoolTest, GrowsToItsLimitThenRefusesUntilABufferComesBack) {
  auto pool = pool_of(kTiny);
  std::vector<BufferRef> buffers(7);
  EXPECT_EQ(pool->take(buffers), 6u);
  EXPECT_EQ(pool->take().error().code, ENOBUFS);
  const auto full = pool->statistics();
  EXPECT_EQ(full.slabs, 3u);
  EXPECT_EQ(full.bytes, 6144u);
  EXPECT_EQ(full.in_use, 6u);
  EXPECT_EQ(full.refusals, 2u);

  buffers[3].reset();
  EXPECT_EQ(pool->statistics().in_use, 5u);
  EXPECT_TRUE(pool->take());
}

TEST_F(BufferPoolTest, TheLastReferenceReturnsTheBuffer) {
  auto pool = pool_of(kTiny);
  BufferRef first = std::move(*pool->take());
  EXPECT_TRUE(first.is_unique());
  BufferRef second = first;
  EXPECT_FALSE(first.is_unique());
  EXPECT_TRUE(first == second);
  first.reset();
  EXPECT_EQ(pool->statistics().in_use, 1u);
  second = BufferRef();
  EXPECT_EQ(pool->statistics().in_use, 0u);
}

TEST_F(BufferPoolTest, AReferenceSurvivesAsAPlainPointer) {
  auto pool = pool_of(kTiny);
  BufferRef buffer = std::move(*pool->take());
  std::byte* const data = buffer.bytes().data();
  BufferHeader* const plain = buffer.release();
  EXPECT_EQ(pool->statistics().in_use, 1u);
  BufferRef again(*plain);
  EXPECT_EQ(again.bytes().data(), data);
  again.reset();
  EXPECT_EQ(pool->statistics().in_use, 0u);
}

TEST_F(BufferPoolTest, RefusedRegistrationIsAnErrorNotACrash) {
  device.set_registration_limit(4096);
  auto pool = pool_of({.buffer_bytes = 4096, .slab_bytes = 4096, .limit_bytes = 1 << 20});
  auto first = pool->take();
  ASSERT_TRUE(first);
  testing::internal::CaptureStderr();
  EXPECT_EQ(pool->take().error().code, ENOMEM);
  EXPECT_EQ(pool->take().error().code, ENOMEM);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
}

TEST_F(BufferPoolTest, EverythingIsDeregisteredWithThePool) {
  auto pool = pool_of(kTiny);
  {
    std::vector<BufferRef> buffers(6);
    EXPECT_EQ(pool->take(buffers), 6u);
  }
  pool.reset();
  EXPECT_EQ(device.live_registrations(), 0);
  EXPECT_EQ(device.registered_bytes(), 0u);
}

TEST(BufferPool, WorksWithoutADevice) {
  auto pool = std::move(*BufferPool::create(nullptr, nullptr, kTiny));
  auto buffer = pool->take();
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->lkey(), 0u);
}

TEST(BufferPool, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(BufferPool::create(nullptr, nullptr, {.buffer_bytes = 0}).error().code, EINVAL);
  EXPECT_EQ(BufferPool::create(nullptr, nullptr, {.buffer_bytes = 4096, .slab_bytes = 4096, .limit_bytes = 4095})
                .error()
                .code,
            EINVAL);
  ibv_pd pd{};
  EXPECT_EQ(BufferPool::create(nullptr, &pd, kTiny).error().code, EINVAL);
}

TEST_F(BufferPoolTest, ThreadsNeverShareABuffer) {
  auto pool = pool_of({.buffer_bytes = 64, .slab_bytes = 1024, .limit_bytes = 4096});  // 64 buffers, 4 threads
  std::atomic<int> clashes = 0;
  {
    std::vector<std::jthread> threads;
    for (int id = 1; id <= 4; ++id) {
      threads.emplace_back([&, id] {
        for (int round = 0; round < 5000; ++round) {
          std::vector<BufferRef> batch(static_cast<std::size_t>(1 + round % 7));
          batch.resize(pool->take(batch));
          if (auto one = pool->take()) batch.push_back(std::move(*one));
          for (auto& buffer : batch) std::memcpy(buffer.bytes().data(), &id, sizeof id);
          for (auto& buffer : batch) {
            int owner = 0;
            std::memcpy(&owner, buffer.bytes().data(), sizeof owner);
            clashes += owner != id;
          }
        }
      });
    }
  }
  EXPECT_EQ(clashes, 0);
  const auto after = pool->statistics();
  EXPECT_EQ(after.in_use, 0u);
  std::vector<BufferRef> all(65);
  EXPECT_EQ(pool->take(all), 64u) << "no buffer was lost or doubled";
}

}  // namespace
}  // namespace ringsock::verbs
