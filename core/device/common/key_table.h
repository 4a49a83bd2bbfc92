// Local and remote keys of registered memory.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/result.h"

namespace ringsock::soft {

/// Every memory region of a device, found by key without a lock. A key is {index:24, generation:8}; the generation
/// changes with each use of an index, so a stale key fails. A region's lkey and rkey are the same number. Threads: all
/// functions from any thread.
class KeyTable {
 public:
  struct Region {
    const ibv_pd* pd;
    std::uint64_t address;
    std::uint64_t length;
    unsigned access;
  };

  /// Error: ENOMEM when there are 2^20 regions, or no memory.
  Result<std::uint32_t> insert(const Region& region);
  void remove(std::uint32_t key);

  /// Returns whether `key` is a live region of `pd` that covers [address, address + length) with all bits of `access`.
  [[nodiscard]] bool covers(std::uint32_t key, const ibv_pd* pd, std::uint64_t address, std::uint64_t length,
                            unsigned access) const {
    const Row* row = find(key);
    if (row == nullptr || row->pd.load(std::memory_order_relaxed) != pd) return false;
    const std::uint64_t start = row->address.load(std::memory_order_relaxed);
    const std::uint64_t size = row->length.load(std::memory_order_relaxed);
    return (row->access.load(std::memory_order_relaxed) & access) == access && address >= start && length <= size &&
           address - start <= size - length;
  }

 private:
  struct Row {
    std::atomic<std::uint32_t> key{0};  ///< 0: free
    std::atomic<std::uint32_t> access{0};
    std::atomic<std::uint64_t> address{0};
    std::atomic<std::uint64_t> length{0};
    std::atomic<const ibv_pd*> pd{nullptr};
    std::uint8_t generation = 0;  ///< of the last key given out; under lock_
  };
  static constexpr unsigned kGenerationBits = 8;
  static constexpr std::size_t kChunkRows = 1024;
  static constexpr std::size_t kMaxChunks = 1024;

  [[nodiscard]] const Row* find(std::uint32_t key) const {
    const std::size_t index = key >> kGenerationBits;
    // Peers send keys, too, so a key may be any 32 bits.
    if (index >= kChunkRows * kMaxChunks) return nullptr;
    const Row* chunk = chunks_[index / kChunkRows].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const Row& row = chunk[index % kChunkRows];
    return key != 0 && row.key.load(std::memory_order_acquire) == key ? &row : nullptr;
  }
  Status grow();

  std::array<std::atomic<Row*>, kMaxChunks> chunks_{};
  std::mutex lock_;
  std::vector<std::unique_ptr<Row[]>> storage_;
  std::vector<std::uint32_t> free_;  ///< indexes, last freed on top
};

}  // namespace ringsock::soft
