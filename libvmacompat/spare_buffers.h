// Buffers at hand.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "core/verbs/buffer_pool.h"

namespace ringsock::vma {

/// Some buffers of a pool, which are taken many at a time: that is one locked instruction for all. Threads: one at a
/// time.
class SpareBuffers {
 public:
  explicit SpareBuffers(verbs::BufferPool& pool) : pool_(pool) {}

  /// Empty: the pool has none.
  verbs::BufferRef take() {
    if (count_ == 0 && !refill()) return {};
    return std::move(buffers_[--count_]);
  }
  /// How many are here.
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  bool refill() {
    count_ = pool_.take(buffers_);
    return count_ != 0;
  }

  verbs::BufferPool& pool_;
  std::array<verbs::BufferRef, 16> buffers_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::vma
