// Buffers taken from a pool in advance.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "core/ethernet/large_buffers.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::ethernet {

/// Buffers of an interface's pool. They are taken many at a time, which costs one locked instruction for all. Threads:
/// one at a time.
class SpareBuffers {
 public:
  SpareBuffers(verbs::BufferPool& pool, LargeBuffers& large) : pool_(pool), large_(large) {}

  /// Returns an empty reference when the pool has none.
  verbs::BufferRef take() {
    if (count_ == 0 && !refill()) return {};
    return std::move(buffers_[--count_]);
  }
  /// Returns a buffer with room for `bytes` bytes.
  verbs::BufferRef take(std::size_t bytes) {
    if (bytes > pool_.buffer_bytes()) [[unlikely]]
      return large_.take(bytes);
    return take();
  }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  bool refill() {
    count_ = pool_.take(buffers_);
    return count_ != 0;
  }

  verbs::BufferPool& pool_;
  LargeBuffers& large_;
  std::array<verbs::BufferRef, 16> buffers_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::ethernet
