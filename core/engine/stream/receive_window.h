// Counts what has arrived at a stream rsocket, and decides what its peer is told.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/result.h"

namespace ringsock::engine {

/// The receiver's half of the rsockets flow control (fact sheet 2.7).
///
/// The receive ring is announced to the peer in segments, which the peer fills in order and to the last byte. So the
/// place of each byte is known, and arriving bytes only have to be counted. Two segments of equal size are announced in
/// turn, as soon as the application has read the one before. A window that grows takes the start of the ring only, so a
/// connection of small messages uses a small part of it over and over. The connect data names all of that part as the
/// first segment, so a peer that sends little needs no announcement at all. The part grows when the peer sends large
/// messages, and when the peer has filled all that it was given, whether the application reads or not. It grows by one
/// segment behind it, up to the end of the ring, and never shrinks. The credit limit bounds the messages that wait
/// unread.
///
/// Threads: the thread that processes completions calls arrived(), the reader everything else. One thread at a time in
/// each role; the two roles may run concurrently.
class ReceiveWindow {
 public:
  /// @param ring_bytes      size of the receive ring; an odd byte at the end stays unused. At least 2.
  /// @param queue_entries   1..65534: receives posted for data, and so the number of unread messages allowed
  ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries)
      : ReceiveWindow(ring_bytes, queue_entries, ring_bytes / 2, ring_bytes) {}
  /// Makes a window that grows. @param used_bytes  size of the part that is used at first, and of the first segment; at
  ///                                               least 2, and no more than the ring
  ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries, std::uint32_t used_bytes)
      : ReceiveWindow(ring_bytes, queue_entries, std::min(used_bytes, ring_bytes), std::min(used_bytes, ring_bytes)) {}

  /// Returns the size of the buffer named in the connect data, which is the start of the ring.
  [[nodiscard]] std::uint32_t first_bytes() const { return first_bytes_; }
  /// Makes the rest of the ring the second segment. Call it before the first announcement.
  void use_all();

  /// Counts a data message of `length` bytes that has arrived. 0 is possible and carries nothing. Error: EPROTO when
  /// the peer wrote more than was announced, or more messages than it had credits for.
  Status arrived(std::uint32_t length);

  /// Returns the number of data messages that have arrived, modulo 2^32.
  [[nodiscard]] std::uint32_t arrived_messages() const { return arrived_messages_.load(std::memory_order_relaxed); }
  /// Returns the number of bytes that can be read.
  [[nodiscard]] std::uint64_t readable() const {
    return arrived_bytes_.load(std::memory_order_acquire) - read_bytes_.load(std::memory_order_relaxed);
  }
  /// Returns the number of bytes that have been read.
  [[nodiscard]] std::uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  /// Returns whether half the ring or half the messages are unread: the sender may stop before more arrives.
  [[nodiscard]] bool is_half_full() const {
    const std::uint32_t unread =
        arrived_messages_.load(std::memory_order_acquire) - read_messages_.load(std::memory_order_relaxed);
    return readable() >= ring_bytes_ / 2 || unread >= queue_entries_ / 2U;
  }
  /// A range of readable bytes in the ring, starting `ahead` bytes behind the oldest unread byte. Its length is 0 when
  /// there are none.
  struct Span {
    std::uint32_t offset;
    std::uint32_t length;
    bool operator==(const Span&) const = default;
  };
  [[nodiscard]] Span peek(std::uint64_t ahead = 0) const;
  /// Frees `bytes` <= readable() that have been copied out.
  void consume(std::uint64_t bytes);

  // -- bytes that the application reads where they lie
  /// Some readable bytes of one segment, which the reader has taken and not copied. The segment stays held.
  struct Held {
    Span span{0, 0};
    std::uint32_t segment = 0;
  };
  /// Takes the next bytes, at most `most`, as far as they lie in one segment. No part of the ring that overlaps with a
  /// held segment is announced before all that was taken from the segment has been given back. Credits are not held:
  /// the messages have been read. The length is 0 when there are none.
  Held hold(std::uint32_t most = UINT32_MAX);
  /// Gives back `count` pieces of a segment, of which only the number modulo kMaxSegments counts. More than are held do
  /// no harm.
  void give_back(std::uint32_t segment, std::uint32_t count);
  [[nodiscard]] bool is_holding() const { return held_ != 0; }
  /// Gives all back, in a process that goes on without those who read them.
  void give_all_back();
  /// Returns a number that changes with restore() and give_all_back(): pieces from before are held no more.
  [[nodiscard]] std::uint32_t holding() const { return holding_; }

  /// A message to the peer about a buffer or credits.
  struct Announcement {
    bool has_buffer;  ///< announce [offset, offset + length) of the ring
    std::uint32_t offset;
    std::uint32_t length;
    std::uint32_t limit;  ///< the new cumulative credit limit
  };
  /// Returns the announcement to send: it is due when the next segment is free, when the peer has filled all segments
  /// and the used part of the ring can grow, or when half the credits are used up. Returns nothing otherwise.
  [[nodiscard]] std::optional<Announcement> due() const;
  /// Returns whether an announcement is due. Any thread may call it; the answer may be outdated for threads other than
  /// the reader.
  [[nodiscard]] bool is_due() const { return is_buffer_due() || are_credits_due(); }
  /// Records that the announcement has been sent.
  void announced(const Announcement& announcement);

  // -- for another process that has a copy of it by fork(2)
  /// A part of the ring that the peer may write, or whose bytes have not been read yet.
  struct Segment {
    std::uint64_t start;  ///< number of its first byte in the stream
    std::uint32_t offset;
    std::uint32_t length;
    [[nodiscard]] std::uint64_t end() const { return start + length; }
  };
  /// Unread segments: two, and one for each time the used part grows while nobody reads.
  static constexpr std::uint32_t kMaxSegments = 16;
  /// The end of a message in the stream. One in a number of messages has a mark.
  struct Mark {
    std::uint64_t bytes;
    std::uint32_t messages;
  };
  /// Marks within the unread messages, of which there is one in an eighth of the credits.
  static constexpr std::uint32_t kMaxMarks = 16;
  /// All that it knows.
  struct Saved {
    std::array<Segment, kMaxSegments> segments;
    std::array<Mark, kMaxMarks> marks;
    std::uint64_t read_bytes;
    std::uint64_t arrived_bytes;
    std::uint64_t bytes_at_announcement;
    std::uint32_t read_messages;
    std::uint32_t arrived_messages;
    std::uint32_t messages_at_announcement;
    std::uint32_t messages_at_mark;
    std::uint32_t credit_threshold;
    std::uint32_t used_bytes;
    std::uint32_t oldest_segment;
    std::uint32_t segment_count;
    std::uint32_t marks_taken;
    std::uint32_t marks_set;
    std::uint8_t uses_all;
  };
  // Threads: no other one uses the window. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);

 private:
  ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries, std::uint32_t first_bytes,
                std::uint32_t used_bytes);
  [[nodiscard]] bool is_possible(const Saved& saved) const;
  [[nodiscard]] bool is_buffer_due() const {
    return read_bytes_.load(std::memory_order_relaxed) >= due_when_read_.load(std::memory_order_relaxed) ||
           arrived_bytes_.load(std::memory_order_relaxed) >= due_when_arrived_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool are_credits_due() const {
    return static_cast<std::int32_t>(read_messages_.load(std::memory_order_relaxed) -
                                     credit_threshold_.load(std::memory_order_relaxed)) >= 0;
  }
  [[nodiscard]] const Segment& segment(std::uint32_t number) const { return segments_[number % kMaxSegments]; }
  [[nodiscard]] bool can_grow() const {
    return used_bytes_ < ring_bytes_ && segment_count_ - oldest_segment_ < kMaxSegments;
  }
  [[nodiscard]] bool has_large_messages() const;
  [[nodiscard]] Segment grown() const;
  [[nodiscard]] Segment following() const;
  [[nodiscard]] bool is_held(const Segment& part) const;
  void plan_next();
  void go_on_in(std::uint32_t number) {
    oldest_segment_ = number;
    oldest_ = segment(number);
  }
  void set_mark(const Mark& mark);

  // Written by the thread that processes completions. Bytes are published before their message, and messages before
  // their mark. So the reader, which looks the other way round, finds no mark ahead of the messages and no messages
  // ahead of the bytes.
  std::atomic<std::uint64_t> arrived_bytes_{0};
  std::atomic<std::uint32_t> arrived_messages_{0};
  std::atomic<std::uint32_t> marks_set_{0};
  std::uint32_t messages_at_mark_ = 0;

  const std::uint32_t messages_per_mark_;
  // Written by the reader
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint32_t> read_messages_{0};     ///< modulo 2^32; of those behind the last mark none or all
  std::atomic<std::uint32_t> credit_threshold_;     ///< read_messages_ at which new credits are due
  std::atomic<std::uint64_t> due_when_read_{0};     ///< read_bytes_ at which the next segment is free
  std::atomic<std::uint64_t> due_when_arrived_{0};  ///< arrived_bytes_ at which the used part is full and can grow
  std::atomic<std::uint64_t> announced_bytes_;
  Segment oldest_{};                  ///< a copy of segment(oldest_segment_)
  std::uint32_t oldest_segment_ = 0;  ///< the one with the next byte to read, or the newest if all bytes are read
  std::uint32_t segment_count_ = 1;   ///< ever announced, modulo 2^32
  std::uint32_t marks_taken_ = 0;
  const std::uint16_t queue_entries_;

  // Seldom used
  std::uint32_t held_ = 0;  ///< pieces that the application has, in all segments
  std::uint32_t holding_ = 0;
  std::array<std::uint32_t, kMaxSegments> held_of_{};  ///< the same of each segment, by its number modulo kMaxSegments
  bool uses_all_ = false;
  const std::uint32_t ring_bytes_;  ///< an even number
  std::uint32_t first_bytes_;
  std::uint32_t used_bytes_;                    ///< the used part of the ring
  std::uint32_t messages_at_announcement_ = 0;  ///< arrived_messages_ when a segment was last announced
  std::uint64_t bytes_at_announcement_ = 0;     ///< the same of arrived_bytes_
  std::array<Mark, kMaxMarks> marks_;
  std::array<Segment, kMaxSegments> segments_;
};

// Inline, because each runs once per message.

inline Status ReceiveWindow::arrived(std::uint32_t length) {
  const std::uint32_t messages = arrived_messages_.load(std::memory_order_relaxed);
  if (messages - read_messages_.load(std::memory_order_acquire) >= queue_entries_) {
    return Error{EPROTO, "rsocket: the peer sent more messages than it had credits"};
  }
  const std::uint64_t bytes = arrived_bytes_.load(std::memory_order_relaxed);
  if (length > announced_bytes_.load(std::memory_order_acquire) - bytes) {
    return Error{EPROTO, "rsocket: the peer sent more bytes than were announced"};
  }
  arrived_bytes_.store(bytes + length, std::memory_order_release);
  arrived_messages_.store(messages + 1, std::memory_order_release);
  if (messages + 1 - messages_at_mark_ == messages_per_mark_) [[unlikely]]
    set_mark({bytes + length, messages + 1});
  return ok();
}

inline void ReceiveWindow::set_mark(const Mark& mark) {
  messages_at_mark_ = mark.messages;
  const std::uint32_t number = marks_set_.load(std::memory_order_relaxed);
  marks_[number % kMaxMarks] = mark;
  marks_set_.store(number + 1, std::memory_order_release);
}

inline ReceiveWindow::Span ReceiveWindow::peek(std::uint64_t ahead) const {
  const std::uint64_t available = readable();
  if (ahead >= available) return {0, 0};
  const std::uint64_t position = read_bytes_.load(std::memory_order_relaxed) + ahead;
  const Segment* found = &oldest_;
  // Bytes that have arrived were announced, so the last segment ends behind the position.
  for (std::uint32_t number = oldest_segment_; position >= found->end();) found = &segment(++number);
  const Segment& place = *found;
  const auto inside = static_cast<std::uint32_t>(position - place.start);
  return {place.offset + inside,
          static_cast<std::uint32_t>(std::min<std::uint64_t>(available - ahead, place.length - inside))};
}

inline void ReceiveWindow::consume(std::uint64_t bytes) {
  const std::uint64_t read = read_bytes_.load(std::memory_order_relaxed) + bytes;
  std::uint32_t messages = read_messages_.load(std::memory_order_relaxed);
  for (const std::uint32_t set = marks_set_.load(std::memory_order_acquire);
       marks_taken_ != set && marks_[marks_taken_ % kMaxMarks].bytes <= read; ++marks_taken_) {
    messages = marks_[marks_taken_ % kMaxMarks].messages;
  }
  const std::uint32_t all_messages = arrived_messages_.load(std::memory_order_acquire);
  if (read == arrived_bytes_.load(std::memory_order_relaxed)) messages = all_messages;
  while (read >= oldest_.end() && oldest_segment_ + 1 != segment_count_) go_on_in(oldest_segment_ + 1);
  read_messages_.store(messages, std::memory_order_release);
  read_bytes_.store(read, std::memory_order_release);
}

}  // namespace ringsock::engine
