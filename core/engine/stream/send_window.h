// Tracks what a stream rsocket may send: the peer's announced buffers and its credits.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/result.h"
#include "core/wire/rs_message.h"

namespace ringsock::engine {

/// The sender's half of the rsockets flow control (fact sheet 2.7; rdma-core librdmacm/docs/rsocket).
///
/// Credits are a cumulative limit modulo 65536: sending stops when the sequence number equals it. Buffers are used
/// strictly in the order of their announcement and to the last byte; a message never spans two.
///
/// Threads: the sender calls room() and take(), the thread that processes completions set_limit() and add_buffer(). One
/// thread at a time in each role; the two roles may run concurrently.
class SendWindow {
 public:
  /// A piece of the peer's memory for one message.
  struct Placement {
    std::uint64_t addr;
    std::uint32_t key;
    std::uint32_t length;
  };

  /// The part of the peer's receive ring that is named in its connect data.
  enum class FirstBuffer { half, whole };
  /// Starts with the buffer and the credits of the peer's connect data. Call it before any other function. Error:
  /// EPROTO when the buffer ends beyond the last address.
  Status reset(wire::PeerSge first_buffer, std::uint16_t credits, FirstBuffer part = FirstBuffer::half);

  /// Returns whether a message of at least one byte may be sent. Any thread may call it; the answer may be outdated for
  /// a thread without the sender's lock.
  [[nodiscard]] bool can_send() const {
    return sequence_.load(std::memory_order_relaxed) != limit_.load(std::memory_order_acquire) &&
           (length_.load(std::memory_order_relaxed) != 0 || has_queued());
  }
  /// Returns whether a sender that waits for room should go on. As of a socket on Linux, a third of the buffer is free
  /// then, so that few sends come out short: the peer announces its buffer in halves, of which one is free or most of
  /// the first one, or a third of a first buffer that is the whole one. A peer that has read everything has announced
  /// so much. Any thread may call it.
  [[nodiscard]] bool is_writable() const {
    return sequence_.load(std::memory_order_relaxed) != limit_.load(std::memory_order_acquire) &&
           (has_queued() || length_.load(std::memory_order_relaxed) > worth_waking_);
  }
  /// Returns the largest length of the next message: the rest of a buffer. 0 when no message may be sent.
  [[nodiscard]] std::uint32_t room();
  /// Returns what the next two messages have room for, of at most `most` bytes together: at the end of a buffer it is
  /// more than room().
  [[nodiscard]] std::uint32_t room_of_two(std::uint32_t most);
  /// Uses one credit and up to `wanted` bytes of that room. Requires can_send() and wanted > 0.
  Placement take(std::uint32_t wanted);

  /// Returns the number of bytes so far. Threads: any; beside a sender the answer may be too small.
  [[nodiscard]] std::uint64_t sent_bytes() const {
    const std::uint64_t given = given_.load(std::memory_order_acquire);
    return given - length_.load(std::memory_order_relaxed);
  }
  /// Returns the number of messages so far, modulo 65536. For the sender.
  [[nodiscard]] std::uint16_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  /// Applies a credit update, of which only the low 16 bits count.
  void set_limit(std::uint32_t value) { limit_.store(static_cast<std::uint16_t>(value), std::memory_order_release); }
  /// Adds a buffer that the peer has announced. Error: EPROTO when more buffers are outstanding than the peer has slots
  /// for, and as for reset().
  Status add_buffer(wire::PeerSge buffer);

  /// The array in which a peer announces buffers has two entries, so at most two buffers are queued behind the current
  /// one.
  static constexpr std::uint32_t kMaxQueued = 2;
  /// All that it knows, for another process that has a copy of it by fork(2).
  struct Saved {
    wire::PeerSge current;  ///< what is left of the current buffer
    std::array<wire::PeerSge, kMaxQueued> queued;
    std::uint64_t given;  ///< bytes of all buffers up to the current one
    std::uint32_t queued_head;
    std::uint32_t queued_tail;
    std::uint16_t sequence;
    std::uint16_t limit;
  };
  // Threads: no other one uses the window. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);

 private:
  void make_current(const wire::PeerSge& buffer);
  std::uint32_t current_length();
  [[nodiscard]] bool has_queued() const {
    return queued_head_.load(std::memory_order_relaxed) != queued_tail_.load(std::memory_order_acquire);
  }

  // Each message uses these. Those without another note are written by the sender; can_send() of other threads reads
  // the atomic ones.
  std::uint32_t worth_waking_ = 0;             ///< a third of the peer's first two halves, written by reset()
  std::atomic<std::uint32_t> queued_tail_{0};  ///< buffers added so far, by the thread that processes completions
  std::atomic<std::uint16_t> limit_{0};        ///< written by that thread, too
  std::atomic<std::uint16_t> sequence_{0};
  std::atomic<std::uint32_t> length_{0};       ///< left of the current buffer
  std::uint64_t address_ = 0;                  ///< in the current buffer
  std::uint32_t key_ = 0;                      ///< of the current buffer
  std::atomic<std::uint32_t> queued_head_{0};  ///< buffers taken so far

  std::atomic<std::uint64_t> given_{0};  ///< bytes of all buffers up to the current one
  std::array<wire::PeerSge, kMaxQueued> queued_{};
};

// Inline, because each runs once per message.

inline std::uint32_t SendWindow::room() { return can_send() ? current_length() : 0; }

inline std::uint32_t SendWindow::room_of_two(std::uint32_t most) {
  const std::uint32_t first = std::min(room(), most);
  const auto credits =
      static_cast<std::uint16_t>(limit_.load(std::memory_order_acquire) - sequence_.load(std::memory_order_relaxed));
  if (first == 0 || first == most || credits < 2 || !has_queued()) return first;
  const std::uint32_t next = queued_[queued_head_.load(std::memory_order_relaxed) % kMaxQueued].length;
  return std::min(first + next, most);
}

/// Returns the bytes left in the current buffer. Takes the next buffer when none are left.
inline std::uint32_t SendWindow::current_length() {
  if (const std::uint32_t length = length_.load(std::memory_order_relaxed); length != 0) [[likely]]
    return length;
  const std::uint32_t head = queued_head_.load(std::memory_order_relaxed);
  make_current(queued_[head % kMaxQueued]);
  queued_head_.store(head + 1, std::memory_order_release);
  return length_.load(std::memory_order_relaxed);
}

inline void SendWindow::make_current(const wire::PeerSge& buffer) {
  address_ = buffer.addr;
  key_ = buffer.key;
  length_.store(buffer.length, std::memory_order_relaxed);
  given_.store(given_.load(std::memory_order_relaxed) + buffer.length, std::memory_order_release);
}

inline SendWindow::Placement SendWindow::take(std::uint32_t wanted) {
  const std::uint32_t left = current_length();
  const std::uint32_t length = std::min(wanted, left);
  const Placement placement{address_, key_, length};
  address_ += length;
  length_.store(left - length, std::memory_order_relaxed);
  sequence_.store(static_cast<std::uint16_t>(sequence_.load(std::memory_order_relaxed) + 1), std::memory_order_relaxed);
  return placement;
}

}  // namespace ringsock::engine
