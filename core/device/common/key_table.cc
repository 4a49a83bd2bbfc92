#include "core/device/common/key_table.h"

#include <new>

namespace ringsock::soft {

Status KeyTable::grow() try {
  const std::size_t chunk = storage_.size();
  if (chunk == kMaxChunks) return Error{ENOMEM, "memory regions: all keys in use"};
  auto rows = std::make_unique<Row[]>(kChunkRows);
  free_.reserve((chunk + 1) * kChunkRows);
  storage_.reserve(chunk + 1);
  for (std::size_t i = kChunkRows; i-- > 0;) free_.push_back(static_cast<std::uint32_t>(chunk * kChunkRows + i));
  chunks_[chunk].store(rows.get(), std::memory_order_release);
  storage_.push_back(std::move(rows));
  return ok();
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "memory regions"};
}

Result<std::uint32_t> KeyTable::insert(const Region& region) {
  std::lock_guard guard(lock_);
  if (free_.empty()) {
    if (Status grown = grow(); !grown) return grown.error();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Row& row = storage_[index / kChunkRows][index % kChunkRows];
  // Generation 0 is skipped, so that no key is 0.
  if (++row.generation == 0) row.generation = 1;
  row.pd.store(region.pd, std::memory_order_relaxed);
  row.address.store(region.address, std::memory_order_relaxed);
  row.length.store(region.length, std::memory_order_relaxed);
  row.access.store(region.access, std::memory_order_relaxed);
  const std::uint32_t key = index << kGenerationBits | row.generation;
  row.key.store(key, std::memory_order_release);
  return key;
}

void KeyTable::remove(std::uint32_t key) {
  std::lock_guard guard(lock_);
  const std::uint32_t index = key >> kGenerationBits;
  storage_[index / kChunkRows][index % kChunkRows].key.store(0, std::memory_order_release);
  free_.push_back(index);
}

}  // namespace ringsock::soft
