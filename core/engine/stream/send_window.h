// What a stream rsocket may send now: the peer's announced buffers and its credits.
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
/// Threads: room() and take() belong to the sender (one at a time), set_limit() and add_buffer() to whoever
/// processes completions (one at a time); the two may run beside each other.
class SendWindow {
 public:
  /// A piece of the peer's memory for one message.
  struct Placement {
    std::uint64_t addr;
    std::uint32_t key;
    std::uint32_t length;
  };

  /// Starts over: the buffer and the credits of the peer's connect data. Before any other call. Error: EPROTO for a
  /// buffer that no memory can hold.
  Status reset(wire::PeerSge first_buffer, std::uint16_t credits);

  /// True when a message of at least one byte may leave. By anybody: who does not hold the sender's lock learns how it
  /// was a moment ago.
  [[nodiscard]] bool can_send() const {
    return sequence_.load(std::memory_order_relaxed) != limit_.load(std::memory_order_acquire) &&
           (length_.load(std::memory_order_relaxed) != 0 || has_queued());
  }
  /// Bytes that the next message may have: the rest of a buffer. 0 when none may leave.
  [[nodiscard]] std::uint32_t room();
  /// Uses one credit and up to `wanted` bytes of that room. Requires can_send() and wanted > 0.
  Placement take(std::uint32_t wanted);

  /// A credit update; only the low 16 bits count.
  void set_limit(std::uint32_t value) { limit_.store(static_cast<std::uint16_t>(value), std::memory_order_release); }
  /// A buffer that the peer has announced. Error: EPROTO when more are outstanding than the peer has slots for, and as
  /// for reset().
  Status add_buffer(wire::PeerSge buffer);

 private:
  /// The array in which a peer announces has two entries, so no more than two buffers wait behind the current one.
  static constexpr std::uint32_t kMaxQueued = 2;

  void make_current(const wire::PeerSge& buffer);
  std::uint32_t current_length();
  [[nodiscard]] bool has_queued() const {
    return queued_head_.load(std::memory_order_relaxed) != queued_tail_.load(std::memory_order_acquire);
  }

  // The sender's; atomic is what can_send() of others looks at.
  std::uint64_t address_ = 0;             ///< in the current buffer
  std::uint32_t key_ = 0;                 ///< of the current buffer
  std::atomic<std::uint32_t> length_{0};  ///< left of the current buffer
  std::atomic<std::uint16_t> sequence_{0};
  std::atomic<std::uint32_t> queued_head_{0};  ///< buffers taken so far
  // The completion side's
  std::atomic<std::uint16_t> limit_{0};
  std::atomic<std::uint32_t> queued_tail_{0};  ///< buffers added so far
  std::array<wire::PeerSge, kMaxQueued> queued_{};
};

// Each runs once per message.

inline std::uint32_t SendWindow::room() { return can_send() ? current_length() : 0; }

/// Bytes left of the current buffer, which is the next one when nothing was.
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
