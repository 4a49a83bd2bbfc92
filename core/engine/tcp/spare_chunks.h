// Memory for the queues of many connections.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

namespace ringsock::engine::tcp {

/// Large chunks that no queue uses at the moment. An allocator gives memory of that size back to the system, from where
/// it comes page fault by page fault: more than everything else that a byte of a stream costs. Threads: any.
class SpareChunks {
 public:
  static constexpr std::size_t kChunkBytes = 65'536;
  static constexpr std::size_t kMost = 32;  ///< more are freed

  SpareChunks() = default;
  SpareChunks(const SpareChunks&) = delete;
  SpareChunks& operator=(const SpareChunks&) = delete;
  ~SpareChunks() {
    for (auto& place : places_) std::unique_ptr<std::byte[]>(place.load());
  }

  /// Returns a chunk whose bytes have any value. Errors: std::bad_alloc.
  std::unique_ptr<std::byte[]> take() {
    for (auto& place : places_) {
      if (place.load(std::memory_order_relaxed) == nullptr) continue;
      if (std::byte* const chunk = place.exchange(nullptr, std::memory_order_acquire))
        return std::unique_ptr<std::byte[]>(chunk);
    }
    return std::make_unique_for_overwrite<std::byte[]>(kChunkBytes);
  }
  void give(std::unique_ptr<std::byte[]> chunk) noexcept {
    for (auto& place : places_) {
      std::byte* nobodys = nullptr;
      if (place.load(std::memory_order_relaxed) != nullptr ||
          !place.compare_exchange_strong(nobodys, chunk.get(), std::memory_order_release, std::memory_order_relaxed))
        continue;
      static_cast<void>(chunk.release());
      return;
    }
  }

 private:
  std::array<std::atomic<std::byte*>, kMost> places_{};
};

/// Gives a chunk back where it came from.
struct ReturnChunk {
  SpareChunks* spare = nullptr;  ///< null: to the allocator
  void operator()(std::byte* chunk) const noexcept {
    std::unique_ptr<std::byte[]> owned(chunk);
    if (spare != nullptr) spare->give(std::move(owned));
  }
};
using ChunkMemory = std::unique_ptr<std::byte[], ReturnChunk>;

}  // namespace ringsock::engine::tcp
