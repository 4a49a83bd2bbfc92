// Counts what has arrived at a stream rsocket, and decides what its peer is told.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/result.h"

namespace ringsock::engine {

/// The receiver's half of the rsockets flow control (fact sheet 2.7).
///
/// The receive ring is announced to the peer in two halves, in turn. The peer fills them in order, so arriving bytes
/// are contiguous in the ring and only have to be counted. The credit limit bounds the messages that wait unread.
///
/// Threads: the thread that processes completions calls arrived(), the reader everything else. One thread at a time in
/// each role; the two roles may run concurrently.
class ReceiveWindow {
 public:
  /// @param ring_bytes      size of the receive ring; an odd byte at the end stays unused. At least 2.
  /// @param queue_entries   1..65534: receives posted for data, and so the number of unread messages allowed
  ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries);

  /// Returns the size of the buffer named in the connect data, which is the first half, and of every later
  /// announcement.
  [[nodiscard]] std::uint32_t half() const { return half_; }

  /// Counts a data message of `length` bytes that has arrived. 0 is possible and carries nothing. Error: EPROTO when
  /// the peer wrote more than was announced, or more messages than it had credits for.
  Status arrived(std::uint32_t length);

  /// Returns the number of bytes that can be read.
  [[nodiscard]] std::uint64_t readable() const {
    return arrived_bytes_.load(std::memory_order_acquire) - read_bytes_.load(std::memory_order_relaxed);
  }
  /// Returns whether half the bytes or half the messages are unread: the sender may stop before more arrives.
  [[nodiscard]] bool is_half_full() const {
    const std::uint32_t unread =
        arrived_messages_.load(std::memory_order_acquire) - read_messages_.load(std::memory_order_relaxed);
    return readable() >= half_ || unread >= queue_entries_ / 2U;
  }
  /// A range of readable bytes in the ring that does not wrap, starting `ahead` bytes behind the oldest unread byte.
  /// Its length is 0 when there are none.
  struct Span {
    std::uint32_t offset;
    std::uint32_t length;
  };
  [[nodiscard]] Span peek(std::uint64_t ahead = 0) const;
  /// Frees `bytes` <= readable() that have been copied out.
  void consume(std::uint64_t bytes);

  /// A message to the peer about a buffer or credits.
  struct Announcement {
    bool has_buffer;  ///< announce [offset, offset + length) of the ring
    std::uint32_t offset;
    std::uint32_t length;
    std::uint32_t limit;  ///< the new cumulative credit limit
  };
  /// Returns the announcement to send: it is due when half the ring is free or half the credits are used up. Returns
  /// nothing otherwise.
  [[nodiscard]] std::optional<Announcement> due() const;
  /// Returns whether an announcement is due. Any thread may call it; the answer may be outdated for threads other than
  /// the reader.
  [[nodiscard]] bool is_due() const { return is_buffer_due() || are_credits_due(); }
  /// Records that the announcement has been sent.
  void announced(const Announcement& announcement);

 private:
  [[nodiscard]] std::uint64_t free_bytes() const {
    return ring_bytes_ -
           (announced_bytes_.load(std::memory_order_relaxed) - read_bytes_.load(std::memory_order_relaxed));
  }

  [[nodiscard]] bool is_buffer_due() const { return free_bytes() >= half_; }
  [[nodiscard]] bool are_credits_due() const {
    return static_cast<std::int32_t>(read_messages_.load(std::memory_order_relaxed) -
                                     credit_threshold_.load(std::memory_order_relaxed)) >= 0;
  }

  const std::uint32_t half_;
  const std::uint64_t ring_bytes_;  ///< two halves
  const std::uint16_t queue_entries_;
  const std::uint32_t lengths_mask_;
  const std::unique_ptr<std::uint32_t[]> lengths_;  ///< unread messages, a ring of 2^n > queue_entries

  // Written by the reader
  std::atomic<std::uint64_t> read_bytes_{0};
  std::uint32_t read_offset_ = 0;                ///< read_bytes_ modulo the ring
  std::uint32_t message_used_ = 0;               ///< bytes already read of the oldest message
  std::atomic<std::uint32_t> read_messages_{0};  ///< modulo 2^32
  std::atomic<std::uint32_t> credit_threshold_;  ///< read_messages_ at which new credits are due
  std::uint32_t announce_offset_;                ///< announced_bytes_ modulo the ring
  std::atomic<std::uint64_t> announced_bytes_;
  // Written by the thread that processes completions
  std::atomic<std::uint64_t> arrived_bytes_{0};
  std::atomic<std::uint32_t> arrived_messages_{0};
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
  lengths_[messages & lengths_mask_] = length;
  arrived_messages_.store(messages + 1, std::memory_order_release);
  arrived_bytes_.store(bytes + length, std::memory_order_release);
  return ok();
}

inline ReceiveWindow::Span ReceiveWindow::peek(std::uint64_t ahead) const {
  const std::uint64_t available = readable();
  if (ahead >= available) return {0, 0};
  std::uint64_t offset = read_offset_ + ahead;
  if (offset >= ring_bytes_) offset -= ring_bytes_;
  return {static_cast<std::uint32_t>(offset),
          static_cast<std::uint32_t>(std::min(available - ahead, ring_bytes_ - offset))};
}

inline void ReceiveWindow::consume(std::uint64_t bytes) {
  std::uint32_t messages = read_messages_.load(std::memory_order_relaxed);
  std::uint64_t left = bytes;
  // Bytes are published after the length of their message, so every length read here is valid.
  while (left > 0) {
    const std::uint32_t rest = lengths_[messages & lengths_mask_] - message_used_;
    if (left < rest) {
      message_used_ += static_cast<std::uint32_t>(left);
      break;
    }
    left -= rest;
    message_used_ = 0;
    ++messages;
  }
  const std::uint64_t offset = read_offset_ + bytes;
  read_offset_ = static_cast<std::uint32_t>(offset >= ring_bytes_ ? offset - ring_bytes_ : offset);
  read_messages_.store(messages, std::memory_order_release);
  read_bytes_.store(read_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
}

inline std::optional<ReceiveWindow::Announcement> ReceiveWindow::due() const {
  const bool buffer = is_buffer_due();
  if (!buffer && !are_credits_due()) return std::nullopt;
  return Announcement{buffer, announce_offset_, half_, read_messages_.load(std::memory_order_relaxed) + queue_entries_};
}

}  // namespace ringsock::engine
