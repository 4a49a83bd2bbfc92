// Fixed-size buffers from registered slabs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/verbs/buffer.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"
#include "core/verbs/pages.h"

namespace ringsock::verbs {

struct BufferPoolOptions {
  std::size_t buffer_bytes = 2048;     ///< of one buffer, rounded up to a multiple of 64
  std::size_t slab_bytes = 2 << 20;    ///< the size of one mapping and registration
  std::size_t limit_bytes = 64 << 20;  ///< the pool stops growing before it exceeds this
  int access = IBV_ACCESS_LOCAL_WRITE;
  UserMemory memory{};  ///< where slabs come from; none: mappings
};

struct BufferPoolStatistics {
  std::size_t slabs;
  std::size_t bytes;       ///< mapped and registered
  std::size_t buffers;     ///< taken and free
  std::size_t in_use;      ///< taken
  std::uint64_t refusals;  ///< how often the pool was exhausted
  PageBacking backing;     ///< of the newest slab
};

/// A pool for one protection domain, or for none: then keys are 0, and only the CPU can use the memory. When it runs
/// out it grows by a slab, up to its limit; it never shrinks. The buffer that was returned last is taken first, because
/// its cache lines are warm. Lifetime: the pool outlives its buffers; the device and the protection domain outlive the
/// pool. Threads: all functions, and the release of buffers, from any thread. Taking and returning are lock-free;
/// growing locks.
class BufferPool {
 public:
  /// Give both `device` and `pd`, or neither. Errors: EINVAL when the options do not allow a single slab.
  static Result<std::unique_ptr<BufferPool>> create(Device* device, ibv_pd* pd, const BufferPoolOptions& options);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// Takes a buffer with unspecified contents. Errors: ENOBUFS at the limit; ENOMEM when memory or its registration is
  /// refused.
  Result<BufferRef> take();
  /// Fills `out` with as many buffers as the pool has. Costs one atomic operation unless the pool must grow.
  /// @return how many, 0..out.size()
  std::size_t take(std::span<BufferRef> out);

  [[nodiscard]] std::size_t buffer_bytes() const { return buffer_bytes_; }
  [[nodiscard]] BufferPoolStatistics statistics() const;

 private:
  friend void recycle(BufferHeader& header);

  /// Parents come first, so that the registration is destroyed before the memory.
  struct Slab {
    Pages pages;
    Mr mr;
    std::unique_ptr<BufferHeader[]> headers;
  };
  /// The stack of free buffers: the index + 1 of its top, and a counter that changes with each operation, so that a top
  /// that was removed and returned is noticed (the ABA problem).
  struct alignas(8) FreeTop {
    std::uint32_t position;
    std::uint32_t changes;
  };

  BufferPool(Device* device, ibv_pd* pd, const BufferPoolOptions& options);

  [[nodiscard]] BufferHeader& header_at(std::uint32_t position) const;
  /// Takes up to `count` buffers off the stack. Returns the position of the first one, the others being linked by
  /// next_free, and their number.
  std::pair<std::uint32_t, std::size_t> pop(std::size_t count);
  void push(BufferHeader& first, BufferHeader& last);
  Result<Slab> make_slab();
  /// Links the buffers of a new slab and publishes them.
  void publish(std::unique_ptr<Slab> slab);
  Status grow();

  Device* const device_;
  ibv_pd* const pd_;
  const int access_;
  const UserMemory memory_;
  const std::size_t buffer_bytes_;
  const std::size_t slab_bytes_;
  const std::uint32_t buffers_per_slab_;
  const std::size_t max_slabs_;

  Mutex grow_lock_;
  bool told_of_failure_ = false;                      ///< under grow_lock_
  std::unique_ptr<std::atomic<Slab*>[]> slab_table_;  ///< max_slabs_ entries; published once each
  std::atomic<std::size_t> slabs_ = 0;

  alignas(64) std::atomic<FreeTop> free_top_{FreeTop{0, 0}};
  std::atomic<std::size_t> in_use_ = 0;
  std::atomic<std::uint64_t> refusals_ = 0;
};

}  // namespace ringsock::verbs
