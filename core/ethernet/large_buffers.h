// Buffers for frames that are longer than an interface's were when it was opened.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "core/base/mutex.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::ethernet {

/// Takes no memory until there is such a frame. Threads: any.
class LargeBuffers {
 public:
  /// @param count_limit  the most buffers of one size
  explicit LargeBuffers(std::size_t count_limit) : count_limit_(count_limit) {}

  /// Returns a buffer of at least `bytes` bytes, empty when there is no memory.
  verbs::BufferRef take(std::size_t bytes);

 private:
  const std::size_t count_limit_;
  Mutex lock_;
  std::map<std::size_t, std::unique_ptr<verbs::BufferPool>> pools_;  ///< by the size of their buffers, a power of two
};

}  // namespace ringsock::ethernet
