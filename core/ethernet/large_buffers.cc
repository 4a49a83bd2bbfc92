#include "core/ethernet/large_buffers.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

namespace ringsock::ethernet {

namespace {
constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
}  // namespace

verbs::BufferRef LargeBuffers::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(bytes);
  const std::lock_guard guard(lock_);
  auto& pool = pools_[size];
  if (!pool) {
    const std::size_t slab = std::max(kSlabBytes, size);
    auto made = verbs::BufferPool::create(
        nullptr, nullptr,
        {.buffer_bytes = size, .slab_bytes = slab, .limit_bytes = std::max(slab, count_limit_ * size), .access = 0});
    if (!made) return {};
    pool = *std::move(made);
  }
  auto buffer = pool->take();
  return buffer ? *std::move(buffer) : verbs::BufferRef();
}

}  // namespace ringsock::ethernet
