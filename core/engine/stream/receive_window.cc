#include "core/engine/stream/receive_window.h"

#include <algorithm>
#include <bit>

namespace ringsock::engine {

ReceiveWindow::ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries)
    : half_(ring_bytes / 2),
      ring_bytes_(2 * std::uint64_t{half_}),
      queue_entries_(queue_entries),
      lengths_(std::bit_ceil(std::size_t{queue_entries} + 1)),
      credit_threshold_(std::max(1u, queue_entries / 2u)),
      announce_offset_(half_),
      announced_bytes_(half_) {}

Status ReceiveWindow::arrived(std::uint32_t length) {
  const std::uint32_t messages = arrived_messages_.load(std::memory_order_relaxed);
  if (messages - read_messages_.load(std::memory_order_acquire) >= queue_entries_) {
    return Error{EPROTO, "rsocket: the peer sent more messages than it had credits"};
  }
  const std::uint64_t bytes = arrived_bytes_.load(std::memory_order_relaxed);
  if (length > announced_bytes_.load(std::memory_order_acquire) - bytes) {
    return Error{EPROTO, "rsocket: the peer sent more bytes than were announced"};
  }
  lengths_[messages & (lengths_.size() - 1)] = length;
  arrived_messages_.store(messages + 1, std::memory_order_release);
  arrived_bytes_.store(bytes + length, std::memory_order_release);
  return ok();
}

ReceiveWindow::Span ReceiveWindow::peek(std::uint64_t ahead) const {
  const std::uint64_t available = readable();
  if (ahead >= available) return {0, 0};
  std::uint64_t offset = read_offset_ + ahead;
  if (offset >= ring_bytes_) offset -= ring_bytes_;
  return {static_cast<std::uint32_t>(offset),
          static_cast<std::uint32_t>(std::min(available - ahead, ring_bytes_ - offset))};
}

void ReceiveWindow::consume(std::uint64_t bytes) {
  std::uint32_t messages = read_messages_.load(std::memory_order_relaxed);
  std::uint64_t left = bytes;
  // Bytes are published after their message's length, so every length read here is there.
  while (left > 0) {
    const std::uint32_t rest = lengths_[messages & (lengths_.size() - 1)] - message_used_;
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

std::optional<ReceiveWindow::Announcement> ReceiveWindow::due() const {
  const std::uint32_t messages = read_messages_.load(std::memory_order_relaxed);
  const bool buffer = free_bytes() >= half_;
  const bool credits = static_cast<std::int32_t>(messages - credit_threshold_) >= 0;
  if (!buffer && !credits) return std::nullopt;
  return Announcement{buffer, announce_offset_, half_, messages + queue_entries_};
}

void ReceiveWindow::announced(const Announcement& announcement) {
  if (announcement.has_buffer) {
    announced_bytes_.store(announced_bytes_.load(std::memory_order_relaxed) + announcement.length,
                           std::memory_order_release);
    announce_offset_ = announce_offset_ == 0 ? half_ : 0;
  }
  credit_threshold_ = announcement.limit - queue_entries_ + std::max(1u, queue_entries_ / 2u);
}

}  // namespace ringsock::engine
