// What a program polls by socketxtreme_poll().
#pragma once

#include <mellanox/vma_extra.h>

#include <cstddef>
#include <span>

#include "core/base/result.h"

namespace ringsock::vma {

/// Played by the endpoint of a descriptor that stands for a ring (Transfer::as_polled_ring()). Threads: any.
class PolledRing {
 public:
  /// Fills in completions, at most as many as there is room, and returns how many. Does not wait. Called without locks.
  /// Errors: EBADFD the ring has ended, or is another process's.
  virtual Result<std::size_t> collect(std::span<vma_completion_t> out) = 0;

 protected:
  PolledRing() = default;
  PolledRing(const PolledRing&) = default;
  PolledRing& operator=(const PolledRing&) = default;
  ~PolledRing() = default;
};

}  // namespace ringsock::vma
