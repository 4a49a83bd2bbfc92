#include "librsocket/saved_connection.h"

#include <atomic>
#include <cerrno>
#include <mutex>

#include "librsocket/connection.h"

namespace ringsock::rs {

std::uint64_t StateOf::waiting_bytes() const { return connection_.overflow_.waiting(); }

/// Returns whether requests are under way. A connection that has failed finishes none.
bool StateOf::is_busy() const {
  const Connection& own = connection_;
  if (own.has_failed_work_.load(std::memory_order_acquire)) return false;
  const std::uint32_t unfinished =
      own.posted_.load(std::memory_order_relaxed) - own.retired_.load(std::memory_order_acquire);
  return own.free_control_slots_.load(std::memory_order_acquire) != Connection::kAllControlSlots ||
         own.ends_under_way_.load(std::memory_order_acquire) != 0 || unfinished != own.unsignalled_;
}

bool StateOf::save_and_suspend(SavedConnection& saved) {
  Connection& own = connection_;
  const std::lock_guard guard(own.poll_lock_);
  const bool is_fixed = own.send_ring_ || own.words_by_send_ || !own.own_iomap_.empty() || own.peer_iomap_entries_ != 0;
  if (own.suspended_.load(std::memory_order_relaxed) || is_fixed || is_busy()) return false;
  const auto queue_pair = own.device_.save(*own.memory_.qp);
  if (!queue_pair) return false;
  saved.queue_pair = *queue_pair;
  saved.send_window = own.send_window_.save();
  saved.receive_window = own.receive_window_.save();
  saved.overflow = own.overflow_.save();
  saved.peer_sgl_next = own.peer_sgl_next_;
  saved.own_sgl_next = own.own_sgl_next_;
  saved.posted = own.posted_.load(std::memory_order_relaxed);
  saved.unsignalled = own.unsignalled_;
  saved.owed_receives = own.owed_receives_;
  saved.has_announced = own.has_announced_;
  save_ends(saved);
  own.suspend();
  return true;
}

void StateOf::save_ends(SavedConnection& saved) const {
  const Connection& own = connection_;
  saved.held_credits = own.held_credits_;
  saved.held = own.held_.load(std::memory_order_relaxed);
  saved.has_failed_work = own.has_failed_work_.load(std::memory_order_relaxed);
  saved.peer_shut_down = own.peer_shut_down();
  saved.peer_disconnected = own.peer_disconnected();
  saved.closing = own.closing_.load(std::memory_order_relaxed);
  saved.flushed = own.flushed_.load(std::memory_order_relaxed);
  saved.failure = own.failure();
}

bool StateOf::is_possible(const SavedConnection& saved) const {
  return saved.peer_sgl_next < connection_.peer_sgl_entries_ && saved.own_sgl_next < Connection::kSglEntries &&
         saved.owed_receives <= kReceiveBatch && saved.unsignalled < connection_.signal_every_ && saved.failure >= 0;
}

Status StateOf::restore(const SavedConnection& saved) {
  const std::lock_guard guard(connection_.poll_lock_);
  if (!is_possible(saved)) return Error{EPROTO, "rsocket: an impossible connection"};
  if (Status windows = restore_windows(saved); !windows) return windows;
  if (Status queue = connection_.device_.restore(*connection_.memory_.qp, saved.queue_pair); !queue) return queue;
  restore_counters(saved);
  restore_ends(saved);
  return ok();
}

Status StateOf::restore_windows(const SavedConnection& saved) {
  if (Status sends = connection_.send_window_.restore(saved.send_window); !sends) return sends;
  if (Status receives = connection_.receive_window_.restore(saved.receive_window); !receives) return receives;
  return connection_.overflow_.restore(saved.overflow);
}

void StateOf::restore_counters(const SavedConnection& saved) {
  Connection& own = connection_;
  own.peer_sgl_next_ = saved.peer_sgl_next;
  own.own_sgl_next_ = saved.own_sgl_next;
  own.posted_.store(saved.posted, std::memory_order_relaxed);
  own.retired_.store(saved.posted - saved.unsignalled, std::memory_order_relaxed);
  own.direct_end_.store(saved.posted - saved.unsignalled, std::memory_order_relaxed);
  own.unsignalled_ = saved.unsignalled;
  own.owed_receives_ = saved.owed_receives;
  own.free_control_slots_.store(Connection::kAllControlSlots, std::memory_order_relaxed);
  own.ends_under_way_.store(0, std::memory_order_relaxed);
  own.has_announced_ = saved.has_announced != 0;
}

/// Ends that this process has seen by itself stay.
void StateOf::restore_ends(const SavedConnection& saved) {
  const auto join = [](std::atomic<bool>& flag, std::uint8_t other) { flag.store(flag.load() || other != 0); };
  connection_.held_credits_ = saved.held_credits;
  connection_.held_.store(saved.held != 0, std::memory_order_relaxed);
  join(connection_.has_failed_work_, saved.has_failed_work);
  join(connection_.peer_shut_down_, saved.peer_shut_down);
  join(connection_.peer_disconnected_, saved.peer_disconnected);
  join(connection_.closing_, saved.closing);
  join(connection_.flushed_, saved.flushed);
  if (saved.failure != 0) connection_.fail(saved.failure);
}

}  // namespace ringsock::rs
