#include "core/engine/tcp/byte_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ringsock::engine::tcp {

/// Large queues get large chunks: the bytes that wait already are a hint.
void ByteQueue::add_chunk(std::size_t wanted) {
  const std::size_t least = chunks_.empty() && wanted <= kKeptChunkBytes ? kKeptChunkBytes : least_chunk_;
  const std::size_t hint = std::clamp<std::size_t>(std::max(wanted, size_), least, kMostChunkBytes);
  const auto capacity = static_cast<std::uint32_t>(std::bit_ceil(hint));
  const bool is_spare = spare_ != nullptr && capacity == kMostChunkBytes;
  ChunkMemory memory(is_spare ? spare_->take().release() : new std::byte[capacity],
                     ReturnChunk{is_spare ? spare_ : nullptr});
  chunks_.push_back({std::move(memory), capacity, 0, 0});
}

void ByteQueue::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (chunks_.empty() || chunks_.back().end == chunks_.back().capacity) add_chunk(bytes.size());
    Chunk& chunk = chunks_.back();
    const std::size_t count = std::min<std::size_t>(bytes.size(), chunk.capacity - chunk.end);
    std::memcpy(chunk.bytes.get() + chunk.end, bytes.data(), count);
    chunk.end += static_cast<std::uint32_t>(count);
    size_ += count;
    bytes = bytes.subspan(count);
  }
}

void ByteQueue::append(ByteQueue&& other) {
  for (Chunk& chunk : other.chunks_) {
    const auto used = chunk.used();
    const std::size_t wasted = chunks_.empty() ? 0 : chunks_.back().capacity - chunks_.back().end;
    if (used.size() < std::max<std::size_t>(chunk.capacity / 2, wasted)) {
      append(used);
      continue;
    }
    size_ += used.size();
    chunks_.push_back(std::move(chunk));
  }
  other.clear();
}

void ByteQueue::put_front(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto count = static_cast<std::uint32_t>(bytes.size());
  ChunkMemory memory(new std::byte[count], ReturnChunk{});
  std::memcpy(memory.get(), bytes.data(), count);
  chunks_.insert(chunks_.begin(), Chunk{std::move(memory), count, 0, count});
  size_ += count;
}

void ByteQueue::drop_front(std::size_t bytes) {
  size_ -= std::min(bytes, size_);
  if (size_ == 0) return empty_out();
  auto at = chunks_.begin();
  for (; bytes >= at->end - at->begin; ++at) bytes -= at->end - at->begin;
  at->begin += static_cast<std::uint32_t>(bytes);
  chunks_.erase(chunks_.begin(), at);
}

ByteQueue::Piece ByteQueue::take_front(std::size_t most) {
  if (size_ == 0 || most == 0) return {};
  Chunk& first = chunks_.front();
  const auto used = first.used();
  if (used.size() <= most && used.size() >= first.capacity / 4) {
    Piece out{std::move(first.bytes), used};
    size_ -= used.size();
    chunks_.erase(chunks_.begin());
    return out;
  }
  const auto copied = used.first(std::min(most, used.size()));
  ChunkMemory memory(new std::byte[copied.size()], ReturnChunk{});
  std::memcpy(memory.get(), copied.data(), copied.size());
  const std::span<const std::byte> bytes(memory.get(), copied.size());
  drop_front(copied.size());
  return {std::move(memory), bytes};
}

void ByteQueue::empty_out() {
  if (chunks_.empty()) return;
  if (&chunks_.front() != &chunks_.back() || chunks_[0].capacity > kKeptChunkBytes) return clear();
  chunks_[0].begin = chunks_[0].end = 0;
}

void ByteQueue::clear() {
  std::vector<Chunk>().swap(chunks_);
  size_ = 0;
}

std::array<std::span<const std::byte>, 2> ByteQueue::view(std::size_t offset, std::size_t bytes) const {
  std::array<std::span<const std::byte>, 2> pieces{};
  std::size_t count = 0;
  for (const Chunk& chunk : chunks_) {
    const auto used = chunk.used();
    if (offset >= used.size()) {
      offset -= used.size();
      continue;
    }
    pieces[count] = used.subspan(offset, std::min(bytes, used.size() - offset));
    bytes -= pieces[count].size();
    offset = 0;
    if (++count == pieces.size() || bytes == 0) break;
  }
  return pieces;
}

std::size_t ByteQueue::copy(std::size_t offset, std::span<std::byte> out) const {
  std::size_t copied = 0;
  for (const Chunk& chunk : chunks_) {
    const auto used = chunk.used();
    if (offset >= used.size()) {
      offset -= used.size();
      continue;
    }
    const std::size_t count = std::min(out.size() - copied, used.size() - offset);
    if (count == 0) break;
    std::memcpy(out.data() + copied, used.data() + offset, count);
    copied += count;
    offset = 0;
  }
  return copied;
}

std::size_t ByteQueue::memory_bytes() const {
  std::size_t bytes = chunks_.capacity() * sizeof(Chunk);
  for (const Chunk& chunk : chunks_) bytes += chunk.capacity;
  return bytes;
}

}  // namespace ringsock::engine::tcp
