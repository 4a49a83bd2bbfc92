// A sequence of bytes that consists of pieces of buffers.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/verbs/buffer.h"

namespace ringsock::verbs {

/// A view of a part of a buffer, which it keeps alive.
struct BufferSegment {
  BufferRef buffer;
  std::uint32_t offset = 0;  ///< within the buffer
  std::uint32_t length = 0;  ///< > 0 in a chain

  [[nodiscard]] std::span<std::byte> bytes() const { return buffer.bytes().subspan(offset, length); }
};

/// A sequence of bytes, held without copying: packets, or the unsent bytes of a stream. Copies of a chain share the
/// buffers.
/// Threads: one at a time; chains that share buffers are independent as long as nobody writes the bytes.
class BufferChain {
 public:
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] bool empty() const { return size_bytes_ == 0; }
  [[nodiscard]] std::span<const BufferSegment> segments() const { return std::span(segments_).subspan(head_); }

  /// Appends `length` bytes of `buffer` from `offset`, which must be within the buffer. Does nothing when `length` is
  /// 0.
  void append(BufferRef buffer, std::uint32_t offset, std::uint32_t length);
  void append(BufferChain other);
  /// Returns the bytes [offset, offset + length) as a chain of their own, cut at the end of this one.
  [[nodiscard]] BufferChain slice(std::size_t offset, std::size_t length) const;
  /// Drops the first bytes, at most all.
  void trim_front(std::size_t bytes);
  void trim_back(std::size_t bytes);
  /// Removes the first bytes, at most all, and returns them.
  BufferChain split_front(std::size_t bytes);
  void clear();

  struct Gathered {
    std::size_t entries;  ///< list entries that were filled
    std::size_t bytes;    ///< bytes that these cover
  };
  /// Describes the bytes from `offset`, at most `max_bytes` of them, as a gather list.
  Gathered gather(std::span<ibv_sge> list, std::size_t offset = 0, std::size_t max_bytes = SIZE_MAX) const;
  /// Copies bytes from `offset` into `out`. @return bytes copied
  std::size_t copy_to(std::span<std::byte> out, std::size_t offset = 0) const;

 private:
  /// Calls visit(segment, first byte, bytes) for the pieces of [offset, offset + length); visit returns false to stop.
  template <class Visit>
  void for_each_piece(std::size_t offset, std::size_t length, Visit visit) const;

  std::vector<BufferSegment> segments_;
  std::size_t head_ = 0;  ///< segments before it are used up; their place is reused when there are many
  std::size_t size_bytes_ = 0;
};

}  // namespace ringsock::verbs
