#include "core/engine/stream/receive_window.h"

#include <algorithm>

namespace ringsock::engine {

namespace {

/// The used part of the ring becomes so many times as large.
constexpr std::uint32_t kGrowth = 4;
/// Messages are large when fewer than these fit into a segment.
constexpr std::uint64_t kManyMessages = 32;

}  // namespace

ReceiveWindow::ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries, std::uint32_t first_bytes,
                             std::uint32_t used_bytes)
    : messages_per_mark_(std::max(1U, queue_entries / 8U)),
      credit_threshold_(std::max(1U, queue_entries / 2U)),
      announced_bytes_(std::min(first_bytes, used_bytes & ~1U)),
      queue_entries_(queue_entries),
      ring_bytes_(ring_bytes & ~1U),
      first_bytes_(std::min(first_bytes, used_bytes & ~1U)),
      used_bytes_(used_bytes & ~1U) {
  segments_[0] = {0, 0, first_bytes_};
  go_on_in(0);
  plan_next();
}

void ReceiveWindow::use_all() {
  uses_all_ = true;
  used_bytes_ = first_bytes_;
  plan_next();
}

/// Returns the segment by which the used part of the ring grows.
ReceiveWindow::Segment ReceiveWindow::grown() const {
  // The last step takes what is left, so that no step is smaller than the part before it.
  const bool is_last = uses_all_ || ring_bytes_ / kGrowth / kGrowth < used_bytes_;
  const std::uint32_t end = is_last ? ring_bytes_ : kGrowth * used_bytes_;
  return {announced_bytes_.load(std::memory_order_relaxed), used_bytes_, end - used_bytes_};
}

/// Returns the segment that follows the newest one while the used part stays as it is.
ReceiveWindow::Segment ReceiveWindow::following() const {
  const std::uint64_t start = announced_bytes_.load(std::memory_order_relaxed);
  const Segment& newest = segment(segment_count_ - 1);
  const std::uint32_t behind = newest.offset + newest.length;
  const std::uint32_t half = used_bytes_ / 2;
  if (behind >= used_bytes_) return {start, 0, half};
  return {start, behind, used_bytes_ - behind};
}

/// Finds out when the next segment will be free.
void ReceiveWindow::plan_next() {
  const Segment& newest = segment(segment_count_ - 1);
  const Segment next = following();
  // Not before the peer has filled all segments but the newest: it has places for two.
  std::uint64_t free_at = newest.start;
  for (std::uint32_t number = oldest_segment_; number != segment_count_; ++number) {
    const Segment& used = segment(number);
    const std::uint32_t shared_end = std::min(used.offset + used.length, next.offset + next.length);
    if (shared_end <= std::max(used.offset, next.offset)) continue;
    free_at = std::max(free_at, used.start + (shared_end - used.offset));
  }
  const std::uint64_t full_at = uses_all_ ? newest.start : newest.end();
  const bool has_place = held_of_[segment_count_ % kMaxSegments] == 0;
  if (!has_place || is_held(next)) free_at = UINT64_MAX;
  due_when_arrived_.store(can_grow() && has_place ? full_at : UINT64_MAX, std::memory_order_relaxed);
  due_when_read_.store(free_at, std::memory_order_relaxed);
}

/// Returns whether a part of the ring overlaps with a held segment.
bool ReceiveWindow::is_held(const Segment& part) const {
  if (held_ == 0) return false;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    if (held_of_[i] == 0) continue;
    const Segment& one = segments_[i];
    if (one.offset < part.offset + part.length && part.offset < one.offset + one.length) return true;
  }
  return false;
}

ReceiveWindow::Held ReceiveWindow::hold(std::uint32_t most) {
  Held out{.span = peek(), .segment = oldest_segment_};
  out.span.length = std::min(out.span.length, most);
  if (out.span.length == 0) return out;
  while (read_bytes_.load(std::memory_order_relaxed) >= segment(out.segment).end()) ++out.segment;
  ++held_;
  // Before the bytes count as read, or another thread might find the segment free.
  if (++held_of_[out.segment % kMaxSegments] == 1) plan_next();
  consume(out.span.length);
  return out;
}

void ReceiveWindow::give_back(std::uint32_t segment, std::uint32_t count) {
  std::uint32_t& pieces = held_of_[segment % kMaxSegments];
  const std::uint32_t known = std::min(pieces, count);
  if (known == 0) return;
  pieces -= known;
  held_ -= known;
  if (pieces == 0) plan_next();
}

void ReceiveWindow::give_all_back() {
  ++holding_;
  held_ = 0;
  held_of_.fill(0);
  plan_next();
}

/// Returns whether few of the messages that came since the last announcement would fill a segment.
bool ReceiveWindow::has_large_messages() const {
  const std::uint64_t messages = arrived_messages_.load(std::memory_order_acquire) - messages_at_announcement_;
  const std::uint64_t bytes = arrived_bytes_.load(std::memory_order_acquire) - bytes_at_announcement_;
  return messages * (used_bytes_ / 2) < kManyMessages * bytes;
}

std::optional<ReceiveWindow::Announcement> ReceiveWindow::due() const {
  const bool has_buffer = is_buffer_due();
  if (!has_buffer && !are_credits_due()) return std::nullopt;
  Announcement out{has_buffer, 0, 0, read_messages_.load(std::memory_order_relaxed) + queue_entries_};
  if (!has_buffer) return out;
  const bool is_full =
      arrived_bytes_.load(std::memory_order_acquire) >= due_when_arrived_.load(std::memory_order_relaxed);
  const bool grows = is_full || (can_grow() && has_large_messages());
  const Segment next = grows ? grown() : following();
  out.offset = next.offset;
  out.length = next.length;
  return out;
}

void ReceiveWindow::announced(const Announcement& announcement) {
  if (announcement.has_buffer) {
    const std::uint64_t start = announced_bytes_.load(std::memory_order_relaxed);
    segments_[segment_count_++ % kMaxSegments] = {start, announcement.offset, announcement.length};
    used_bytes_ = std::max(used_bytes_, announcement.offset + announcement.length);
    // A reader that had read everything goes on in the new segment.
    if (read_bytes_.load(std::memory_order_relaxed) >= oldest_.end()) go_on_in(oldest_segment_ + 1);
    messages_at_announcement_ = arrived_messages_.load(std::memory_order_acquire);
    bytes_at_announcement_ = arrived_bytes_.load(std::memory_order_acquire);
    announced_bytes_.store(start + announcement.length, std::memory_order_release);
    plan_next();
  }
  credit_threshold_.store(announcement.limit - queue_entries_ + std::max(1U, queue_entries_ / 2U),
                          std::memory_order_relaxed);
}

ReceiveWindow::Saved ReceiveWindow::save() const {
  Saved saved{};
  saved.segments = segments_;
  saved.marks = marks_;
  saved.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  saved.arrived_bytes = arrived_bytes_.load(std::memory_order_relaxed);
  saved.bytes_at_announcement = bytes_at_announcement_;
  saved.read_messages = read_messages_.load(std::memory_order_relaxed);
  saved.arrived_messages = arrived_messages_.load(std::memory_order_relaxed);
  saved.messages_at_announcement = messages_at_announcement_;
  saved.messages_at_mark = messages_at_mark_;
  saved.credit_threshold = credit_threshold_.load(std::memory_order_relaxed);
  saved.used_bytes = used_bytes_;
  saved.oldest_segment = oldest_segment_;
  saved.segment_count = segment_count_;
  saved.marks_taken = marks_taken_;
  saved.marks_set = marks_set_.load(std::memory_order_relaxed);
  saved.uses_all = uses_all_;
  return saved;
}

/// Returns whether the segments follow each other inside the ring, and the unread bytes are in them.
bool ReceiveWindow::is_possible(const Saved& saved) const {
  const std::uint32_t segments = saved.segment_count - saved.oldest_segment;
  if (segments == 0 || segments > kMaxSegments || saved.used_bytes > ring_bytes_ || saved.used_bytes == 0) return false;
  if (saved.marks_set - saved.marks_taken > kMaxMarks) return false;
  if (saved.arrived_messages - saved.read_messages > queue_entries_) return false;
  std::uint64_t at = saved.segments[saved.oldest_segment % kMaxSegments].start;
  if (saved.read_bytes < at || saved.arrived_bytes < saved.read_bytes) return false;
  for (std::uint32_t number = saved.oldest_segment; number != saved.segment_count; ++number) {
    const Segment& one = saved.segments[number % kMaxSegments];
    if (one.start != at || one.offset > ring_bytes_ || one.length > ring_bytes_ - one.offset) return false;
    at = one.end();
  }
  return saved.arrived_bytes <= at;
}

Status ReceiveWindow::restore(const Saved& saved) {
  if (!is_possible(saved)) return Error{EPROTO, "rsocket: impossible segments"};
  segments_ = saved.segments;
  marks_ = saved.marks;
  bytes_at_announcement_ = saved.bytes_at_announcement;
  messages_at_announcement_ = saved.messages_at_announcement;
  messages_at_mark_ = saved.messages_at_mark;
  used_bytes_ = saved.used_bytes;
  go_on_in(saved.oldest_segment);
  segment_count_ = saved.segment_count;
  marks_taken_ = saved.marks_taken;
  uses_all_ = saved.uses_all != 0;
  announced_bytes_.store(segment(segment_count_ - 1).end(), std::memory_order_relaxed);
  credit_threshold_.store(saved.credit_threshold, std::memory_order_relaxed);
  marks_set_.store(saved.marks_set, std::memory_order_relaxed);
  read_messages_.store(saved.read_messages, std::memory_order_relaxed);
  arrived_messages_.store(saved.arrived_messages, std::memory_order_relaxed);
  read_bytes_.store(saved.read_bytes, std::memory_order_relaxed);
  arrived_bytes_.store(saved.arrived_bytes, std::memory_order_release);
  give_all_back();
  return ok();
}

}  // namespace ringsock::engine
