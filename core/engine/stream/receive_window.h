// What has arrived at a stream rsocket, and what its peer is told about it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"

namespace ringsock::engine {

/// The receiver's half of the rsockets flow control (fact sheet 2.7).
///
/// The receive ring is announced to the peer in two halves, turn by turn; the peer fills them in order, so arriving
/// bytes lie one after the other in the ring and only have to be counted. The credit limit bounds the messages that
/// wait unread.
///
/// Threads: arrived() belongs to whoever processes completions, everything else to the reader; one at a time each, the
/// two may run beside each other.
class ReceiveWindow {
 public:
  /// @param ring_bytes      size of the receive ring; an odd byte at the end stays unused. At least 2.
  /// @param queue_entries   1..65534: receives posted for data, and so the number of unread messages allowed
  ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries);

  /// The buffer named in the connect data: the first half. Also the size of every later announcement.
  [[nodiscard]] std::uint32_t half() const { return half_; }

  /// A data message of `length` bytes has landed. 0 is possible and carries nothing.
  /// Error: EPROTO when the peer wrote more than was announced, or more messages than it had credits for.
  Status arrived(std::uint32_t length);

  /// Bytes that can be read.
  [[nodiscard]] std::uint64_t readable() const {
    return arrived_bytes_.load(std::memory_order_acquire) - read_bytes_.load(std::memory_order_relaxed);
  }
  /// Where the oldest unread byte lies in the ring, and how many readable bytes follow it without wrapping, skipping
  /// `ahead` bytes first. length 0: nothing there.
  struct Span {
    std::uint32_t offset;
    std::uint32_t length;
  };
  [[nodiscard]] Span peek(std::uint64_t ahead = 0) const;
  /// `bytes` <= readable() have been copied out.
  void consume(std::uint64_t bytes);

  /// A message to the peer that is due.
  struct Announcement {
    bool has_buffer;  ///< announce [offset, offset + length) of the ring
    std::uint32_t offset;
    std::uint32_t length;
    std::uint32_t limit;  ///< the new cumulative credit limit
  };
  /// Due when half the ring is free, or half the credits are used up; nothing otherwise.
  [[nodiscard]] std::optional<Announcement> due() const;
  /// It has been sent.
  void announced(const Announcement& announcement);

 private:
  [[nodiscard]] std::uint64_t free_bytes() const {
    return ring_bytes_ -
           (announced_bytes_.load(std::memory_order_relaxed) - read_bytes_.load(std::memory_order_relaxed));
  }

  const std::uint32_t half_;
  const std::uint64_t ring_bytes_;  ///< two halves
  const std::uint16_t queue_entries_;
  std::vector<std::uint32_t> lengths_;  ///< unread messages, a ring; size is a power of two > queue_entries

  // The reader's
  std::atomic<std::uint64_t> read_bytes_{0};
  std::uint32_t read_offset_ = 0;                ///< read_bytes_ modulo the ring
  std::uint32_t message_used_ = 0;               ///< bytes already read of the oldest message
  std::atomic<std::uint32_t> read_messages_{0};  ///< modulo 2^32
  std::uint32_t credit_threshold_;               ///< read_messages_ at which new credits are due
  std::uint32_t announce_offset_;                ///< announced_bytes_ modulo the ring
  std::atomic<std::uint64_t> announced_bytes_;
  // The completion side's
  std::atomic<std::uint64_t> arrived_bytes_{0};
  std::atomic<std::uint32_t> arrived_messages_{0};
};

}  // namespace ringsock::engine
