// Buffers at hand.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "core/ethernet/large_buffers.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::ethernet {

/// Some buffers of an interface's pool, which are taken many at a time: that is one locked instruction for all.
/// Threads: one at a time.
class SpareBuffers {
 public:
  SpareBuffers(verbs::BufferPool& pool, LargeBuffers& large) : pool_(pool), large_(large) {}

  /// Empty: the pool has none.
  verbs::BufferRef take() {
    if (count_ == 0 && !refill()) return {};
    return std::move(buffers_[--count_]);
  }
  /// One that `bytes` bytes fit into.
  verbs::BufferRef take(std::size_t bytes) {
    if (bytes > pool_.buffer_bytes()) [[unlikely]]
      return large_.take(bytes);
    return take();
  }
  /// How many are here.
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
