// Buffers for frames that are longer than an interface's were when it was opened.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "core/base/mutex.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::ethernet {

/// Where nobody has frames that long no memory is taken. Threads: any.
class LargeBuffers {
 public:
  /// @param count_limit  Most buffers of a size.
  explicit LargeBuffers(std::size_t count_limit) : count_limit_(count_limit) {}

  /// One of at least `bytes` bytes; empty: there is no memory.
  verbs::BufferRef take(std::size_t bytes);

 private:
  const std::size_t count_limit_;
  Mutex lock_;
  std::map<std::size_t, std::unique_ptr<verbs::BufferPool>> pools_;  ///< by the size of their buffers, powers of two
};

}  // namespace ringsock::ethernet
