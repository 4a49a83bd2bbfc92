#include "core/engine/stream/send_window.h"

#include <algorithm>

namespace ringsock::engine {

namespace {
/// Whether its end is beyond the end of all addresses.
bool is_impossible(const wire::PeerSge& buffer) { return buffer.addr + buffer.length < buffer.addr; }
}  // namespace

Status SendWindow::reset(wire::PeerSge first_buffer, std::uint16_t credits) {
  if (is_impossible(first_buffer)) return Error{EPROTO, "rsocket: the peer's buffer is beyond all addresses"};
  make_current(first_buffer);
  sequence_.store(0, std::memory_order_relaxed);
  queued_head_.store(0, std::memory_order_relaxed);
  queued_tail_.store(0, std::memory_order_relaxed);
  limit_.store(credits, std::memory_order_release);
  return ok();
}

std::uint32_t SendWindow::room() const {
  if (const std::uint32_t length = length_.load(std::memory_order_relaxed); length != 0) return length;
  return has_queued() ? queued_[queued_head_.load(std::memory_order_relaxed) % kMaxQueued].length : 0;
}

void SendWindow::make_current(const wire::PeerSge& buffer) {
  address_ = buffer.addr;
  key_ = buffer.key;
  length_.store(buffer.length, std::memory_order_relaxed);
}

SendWindow::Placement SendWindow::take(std::uint32_t wanted) {
  if (length_.load(std::memory_order_relaxed) == 0) {
    const std::uint32_t head = queued_head_.load(std::memory_order_relaxed);
    make_current(queued_[head % kMaxQueued]);
    queued_head_.store(head + 1, std::memory_order_release);
  }
  const std::uint32_t left = length_.load(std::memory_order_relaxed);
  const std::uint32_t length = std::min(wanted, left);
  const Placement placement{address_, key_, length};
  address_ += length;
  length_.store(left - length, std::memory_order_relaxed);
  sequence_.store(static_cast<std::uint16_t>(sequence_.load(std::memory_order_relaxed) + 1), std::memory_order_relaxed);
  return placement;
}

Status SendWindow::add_buffer(wire::PeerSge buffer) {
  if (is_impossible(buffer)) return Error{EPROTO, "rsocket: the peer's buffer is beyond all addresses"};
  const std::uint32_t tail = queued_tail_.load(std::memory_order_relaxed);
  if (tail - queued_head_.load(std::memory_order_acquire) >= kMaxQueued) {
    return Error{EPROTO, "rsocket: more buffers announced than there are slots"};
  }
  queued_[tail % kMaxQueued] = buffer;
  queued_tail_.store(tail + 1, std::memory_order_release);
  return ok();
}

}  // namespace ringsock::engine
