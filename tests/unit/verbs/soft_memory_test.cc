// Buffers on the embedded device, rather than on the fake one.
#include <gtest/gtest.h>

#include "core/device/shm/soft_device.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::verbs {
namespace {

struct SoftMemoryTest : testing::Test {
  std::unique_ptr<soft::SoftDevice> device = std::move(*soft::SoftDevice::open());
  Pd pd = std::move(*device->alloc_pd());
};

TEST_F(SoftMemoryTest, PoolBuffersLieInARegistrationOfTheDevice) {
  auto pool = std::move(*BufferPool::create(device.get(), pd.get(), {.buffer_bytes = 2048, .slab_bytes = 1 << 16}));
  std::vector<BufferRef> buffers(40);
  ASSERT_EQ(pool->take(buffers), 40u);
  EXPECT_EQ(buffers.front().lkey(), buffers[1].lkey()) << "one registration for the slab";
  EXPECT_NE(buffers.front().lkey(), buffers.back().lkey()) << "40 buffers of 2 KiB take two slabs of 64 KiB";
}

}  // namespace
}  // namespace ringsock::verbs
