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
  static constexpr std::size_t kMost = 16;

  /// @param batch  how many are taken at a time, 1 to kMost
  SpareBuffers(verbs::BufferPool& pool, LargeBuffers& large, std::size_t batch)
      : pool_(pool), large_(large), batch_(batch) {}

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
    count_ = pool_.take(std::span(buffers_).first(batch_));
    return count_ != 0;
  }

  verbs::BufferPool& pool_;
  LargeBuffers& large_;
  const std::size_t batch_;
  std::array<verbs::BufferRef, kMost> buffers_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::ethernet
