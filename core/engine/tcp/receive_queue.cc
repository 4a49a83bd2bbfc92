#include "core/engine/tcp/receive_queue.h"

#include <algorithm>

namespace ringsock::engine::tcp {
namespace {
constexpr std::uint32_t kLeastRangeChunk = 256;
}

std::uint32_t ReceiveQueue::add(Seq seq, Seq next, std::span<const std::byte> bytes) {
  const Seq end = seq + static_cast<Seq>(bytes.size());
  if (seq != next) {
    store(seq, end, bytes);
    return 0;
  }
  if (ranges_.empty()) [[likely]] {
    in_order.append(bytes);
    return static_cast<std::uint32_t>(bytes.size());
  }
  // The bytes of a waiting range arrived first: only the gap before it takes new ones.
  const Seq limit = ranges_.front().begin;
  const Seq stop = before(limit, end) ? limit : end;
  in_order.append(bytes.first(stop - seq));
  if (before(stop, end)) store(stop, end, bytes.subspan(stop - seq));
  return stop - next + release(stop);
}

/// Moves ranges that the stream has reached to the application.
std::uint32_t ReceiveQueue::release(Seq next) {
  std::uint32_t grown = 0;
  while (!ranges_.empty() && ranges_.front().begin == next) {
    Range& first = ranges_.front();
    grown += first.end - first.begin;
    next = first.end;
    in_order.append(std::move(first.bytes));
    ranges_.erase(ranges_.begin());
  }
  return grown;
}

/// Puts the parts that are new into the gaps between the ranges.
void ReceiveQueue::store(Seq seq, Seq end, std::span<const std::byte> bytes) {
  std::size_t at = 0;
  while (before(seq, end)) {
    while (at < ranges_.size() && at_or_before(ranges_[at].end, seq)) ++at;
    if (at < ranges_.size() && at_or_before(ranges_[at].begin, seq)) {  // inside a range: skip what it has
      const Seq skip = before(end, ranges_[at].end) ? end : ranges_[at].end;
      ranges_[at].grown = ++growths_;
      bytes = bytes.subspan(skip - seq);
      seq = skip;
      continue;
    }
    const Seq stop = at < ranges_.size() && before(ranges_[at].begin, end) ? ranges_[at].begin : end;
    store_piece(at, seq, stop, bytes.first(stop - seq));
    bytes = bytes.subspan(stop - seq);
    seq = stop;
    at = 0;  // the piece may have joined its neighbours
  }
}

/// Stores bytes in the gap before range `at`.
void ReceiveQueue::store_piece(std::size_t at, Seq seq, Seq end, std::span<const std::byte> bytes) {
  if (at > 0 && ranges_[at - 1].end == seq) {
    --at;
    ranges_[at].bytes.append(bytes);
    ranges_[at].end = end;
  } else {
    if (ranges_.size() >= kMostRanges) return;
    ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(at),
                   Range{seq, end, 0, ByteQueue(kLeastRangeChunk, in_order.spare())});
    ranges_[at].bytes.append(bytes);
  }
  ranges_[at].grown = ++growths_;
  join(at);
}

/// Joins range `at` with the next one when they touch.
void ReceiveQueue::join(std::size_t at) {
  if (at + 1 >= ranges_.size() || ranges_[at + 1].begin != ranges_[at].end) return;
  ranges_[at].bytes.append(std::move(ranges_[at + 1].bytes));
  ranges_[at].end = ranges_[at + 1].end;
  ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
}

void ReceiveQueue::report(Options& options) const {
  std::uint32_t newer_than_all = growths_ + 1;
  while (options.sack_count < options.sack.size()) {
    const Range* latest = nullptr;
    for (const Range& range : ranges_)
      if (range.grown < newer_than_all && (latest == nullptr || range.grown > latest->grown)) latest = &range;
    if (latest == nullptr) return;
    options.sack[options.sack_count++] = {latest->begin, latest->end};
    newer_than_all = latest->grown;
  }
}

std::optional<SackBlock> ReceiveQueue::first_overlap(Seq seq, Seq end) const {
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [=](const Range& range) {
    return before(seq, range.end) && before(range.begin, end);
  });
  if (found == ranges_.end()) return std::nullopt;
  return SackBlock{later_of(seq, found->begin), before(end, found->end) ? end : found->end};
}

std::size_t ReceiveQueue::waiting_bytes() const {
  std::size_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.bytes.size();
  return bytes;
}

std::size_t ReceiveQueue::memory_bytes() const {
  std::size_t bytes = in_order.memory_bytes() + ranges_.capacity() * sizeof(Range);
  for (const Range& range : ranges_) bytes += range.bytes.memory_bytes();
  return bytes;
}

}  // namespace ringsock::engine::tcp
