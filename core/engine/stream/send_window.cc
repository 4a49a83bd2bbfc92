#include "core/engine/stream/send_window.h"

namespace ringsock::engine {

namespace {
/// Returns whether the buffer ends beyond the last address.
bool is_impossible(const wire::PeerSge& buffer) { return buffer.addr + buffer.length < buffer.addr; }
}  // namespace

Status SendWindow::reset(wire::PeerSge first_buffer, std::uint16_t credits, FirstBuffer part) {
  if (is_impossible(first_buffer)) return Error{EPROTO, "rsocket: the peer's buffer is beyond all addresses"};
  given_.store(0, std::memory_order_relaxed);
  make_current(first_buffer);
  const std::uint64_t all = std::uint64_t{first_buffer.length} * (part == FirstBuffer::half ? 2 : 1);
  worth_waking_ = static_cast<std::uint32_t>(all / 3);
  sequence_.store(0, std::memory_order_relaxed);
  queued_head_.store(0, std::memory_order_relaxed);
  queued_tail_.store(0, std::memory_order_relaxed);
  limit_.store(credits, std::memory_order_release);
  return ok();
}

SendWindow::Saved SendWindow::save() const {
  Saved saved{};
  saved.current = {address_, key_, length_.load(std::memory_order_relaxed)};
  saved.queued = queued_;
  saved.given = given_.load(std::memory_order_relaxed);
  saved.queued_head = queued_head_.load(std::memory_order_relaxed);
  saved.queued_tail = queued_tail_.load(std::memory_order_relaxed);
  saved.sequence = sequence_.load(std::memory_order_relaxed);
  saved.limit = limit_.load(std::memory_order_relaxed);
  return saved;
}

Status SendWindow::restore(const Saved& saved) {
  const bool is_possible = !is_impossible(saved.current) && saved.queued_tail - saved.queued_head <= kMaxQueued &&
                           std::none_of(saved.queued.begin(), saved.queued.end(), is_impossible);
  if (!is_possible) return Error{EPROTO, "rsocket: impossible buffers"};
  make_current(saved.current);
  given_.store(saved.given, std::memory_order_relaxed);
  queued_ = saved.queued;
  queued_head_.store(saved.queued_head, std::memory_order_relaxed);
  queued_tail_.store(saved.queued_tail, std::memory_order_relaxed);
  sequence_.store(saved.sequence, std::memory_order_relaxed);
  limit_.store(saved.limit, std::memory_order_release);
  return ok();
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
