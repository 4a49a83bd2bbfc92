#include "core/verbs/buffer_chain.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace ringsock::verbs {

template <class Visit>
void BufferChain::for_each_piece(std::size_t offset, std::size_t length, Visit visit) const {
  for (const BufferSegment& segment : segments()) {
    if (length == 0) return;
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const auto first = static_cast<std::uint32_t>(offset);
    const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(segment.length - first, length));
    if (!visit(segment, first, bytes)) return;
    length -= bytes;
    offset = 0;
  }
}

void BufferChain::append(BufferRef buffer, std::uint32_t offset, std::uint32_t length) {
  if (length == 0) return;
  segments_.push_back({std::move(buffer), offset, length});
  size_bytes_ += length;
}

void BufferChain::append(BufferChain other) {
  const auto first = other.segments_.begin() + static_cast<std::ptrdiff_t>(other.head_);
  segments_.insert(segments_.end(), std::make_move_iterator(first), std::make_move_iterator(other.segments_.end()));
  size_bytes_ += other.size_bytes_;
}

BufferChain BufferChain::slice(std::size_t offset, std::size_t length) const {
  BufferChain out;
  for_each_piece(offset, length, [&](const BufferSegment& segment, std::uint32_t first, std::uint32_t bytes) {
    out.append(segment.buffer, segment.offset + first, bytes);
    return true;
  });
  return out;
}

void BufferChain::trim_front(std::size_t bytes) {
  bytes = std::min(bytes, size_bytes_);
  size_bytes_ -= bytes;
  while (bytes > 0) {
    BufferSegment& segment = segments_[head_];
    const auto cut = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, segment.length));
    segment.offset += cut;
    segment.length -= cut;
    bytes -= cut;
    if (segment.length > 0) break;
    segment.buffer.reset();
    ++head_;
  }
  // Moving the rest down occasionally costs constant time per segment, amortised.
  if (head_ * 2 >= segments_.size()) {
    segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
}

void BufferChain::trim_back(std::size_t bytes) {
  bytes = std::min(bytes, size_bytes_);
  size_bytes_ -= bytes;
  while (bytes > 0) {
    BufferSegment& segment = segments_.back();
    const auto cut = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, segment.length));
    segment.length -= cut;
    bytes -= cut;
    if (segment.length == 0) segments_.pop_back();
  }
}

BufferChain BufferChain::split_front(std::size_t bytes) {
  BufferChain front = slice(0, bytes);
  trim_front(bytes);
  return front;
}

void BufferChain::clear() {
  segments_.clear();
  head_ = 0;
  size_bytes_ = 0;
}

BufferChain::Gathered BufferChain::gather(std::span<ibv_sge> list, std::size_t offset, std::size_t max_bytes) const {
  Gathered out{0, 0};
  for_each_piece(offset, max_bytes, [&](const BufferSegment& segment, std::uint32_t first, std::uint32_t bytes) {
    if (out.entries == list.size()) return false;
    list[out.entries++] = {.addr = reinterpret_cast<std::uintptr_t>(segment.bytes().data() + first),
                           .length = bytes,
                           .lkey = segment.buffer.lkey()};
    out.bytes += bytes;
    return true;
  });
  return out;
}

std::size_t BufferChain::copy_to(std::span<std::byte> out, std::size_t offset) const {
  std::size_t copied = 0;
  for_each_piece(offset, out.size(), [&](const BufferSegment& segment, std::uint32_t first, std::uint32_t bytes) {
    std::memcpy(out.data() + copied, segment.bytes().data() + first, bytes);
    copied += bytes;
    return true;
  });
  return copied;
}

}  // namespace ringsock::verbs
