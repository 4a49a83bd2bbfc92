// A queue of bytes in chunks that are allocated when needed and freed when empty.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/engine/tcp/spare_chunks.h"

namespace ringsock::engine::tcp {

/// The bytes of a send or receive queue. An empty queue owns no chunk but a small one: short requests and answers
/// allocate nothing. Threads: one at a time.
class ByteQueue {
 public:
  static constexpr std::uint32_t kMostChunkBytes = SpareChunks::kChunkBytes;
  static constexpr std::uint32_t kKeptChunkBytes = 256;

  /// @param least_chunk  Chunks but the first are at least so large: the largest piece that view() must give in two
  /// spans.
  /// @param spare        where the largest chunks come from; null: from the allocator
  explicit ByteQueue(std::uint32_t least_chunk = 4096, SpareChunks* spare = nullptr)
      : least_chunk_(least_chunk), spare_(spare) {}

  void append(std::span<const std::byte> bytes);
  /// Appends another queue. Copies the bytes of chunks that are mostly empty: memory stays a small multiple of size().
  void append(ByteQueue&& other);
  /// Puts a copy in front of all others. Errors: std::bad_alloc; the queue is as before.
  void put_front(std::span<const std::byte> bytes);
  void drop_front(std::size_t bytes);
  /// Bytes that have left the queue, with the memory in which they lie.
  struct Piece {
    ChunkMemory memory{};
    std::span<const std::byte> bytes{};
  };
  /// Takes the first 1 to `most` bytes out, which lie in a row: those of the first chunk, without copying them. They
  /// are copied when the chunk is mostly empty or has more than `most`, so a piece keeps at most four times its bytes.
  /// Empty when the queue is. Errors: std::bad_alloc; the queue is as before.
  Piece take_front(std::size_t most);
  void clear();
  /// Returns up to `bytes` from `offset` on, in at most two spans.
  [[nodiscard]] std::array<std::span<const std::byte>, 2> view(std::size_t offset, std::size_t bytes) const;
  /// Copies bytes from `offset` on. Returns how many.
  std::size_t copy(std::size_t offset, std::span<std::byte> out) const;
  [[nodiscard]] SpareChunks* spare() const { return spare_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  struct Chunk {
    ChunkMemory bytes;
    std::uint32_t capacity;
    std::uint32_t begin;
    std::uint32_t end;
    [[nodiscard]] std::span<const std::byte> used() const { return {bytes.get() + begin, end - begin}; }
  };
  void add_chunk(std::size_t wanted);
  void empty_out();

  std::vector<Chunk> chunks_;
  std::size_t size_ = 0;
  std::uint32_t least_chunk_;
  SpareChunks* spare_;
};

}  // namespace ringsock::engine::tcp
