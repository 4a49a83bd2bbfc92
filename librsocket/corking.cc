#include "librsocket/corking.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/abandon.h"
#include "core/runtime/service_thread.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

// -- the timer

Status CorkTimer::begin() {
  until_.store(monotonic_now() + kCeiling);
  if (runs_.exchange(true)) return ok();
  Status scheduled = schedule(until_.load());
  if (scheduled) return ok();
  end();
  runs_.store(false);
  return scheduled;
}

Status CorkTimer::schedule(Nanos when) {
  const auto timer = runtime::service_thread().schedule(when, [self = weak_from_this()] {
    if (const auto timer = self.lock()) timer->run();
  });
  return timer ? ok() : Status(timer.error());
}

void CorkTimer::run() {
  while (!ends()) {
    const Nanos until = until_.load();
    if (until == Nanos::max()) continue;
    if (monotonic_now() < until) {
      if (schedule(until)) return;
      until_.store(Nanos::zero());
    }
    const std::lock_guard guard(lock_);
    if (stopped_) return;
    end_wait_();
  }
}

bool CorkTimer::ends() {
  if (until_.load() != Nanos::max()) return false;
  runs_.store(false);
  // A sender may have begun to wait before it could see that.
  return until_.load() == Nanos::max() || runs_.exchange(true);
}

void CorkTimer::stop() {
  const std::lock_guard guard(lock_);
  stopped_ = true;
}

// -- the socket's side

bool Corking::is_corked() const { return socket_.options().integer(IPPROTO_TCP, TCP_CORK) != 0; }

void Corking::mark() {
  core_.connection->sending().core().set(ConnectionCore::kCorks, !waiting_.empty() || is_corked(),
                                         std::memory_order_relaxed);
}

void Corking::option_changed() {
  const std::lock_guard sending(core_.send_lock);
  if (!core_.is_connected()) return;
  if (!is_corked()) let_go();
  mark();
}

void Corking::push() {
  const std::lock_guard sending(core_.send_lock);
  let_go();
}

std::size_t Corking::hold(IoCursor& data) {
  const std::size_t room = core_.connection->sending().assured_room();
  const std::size_t length = data.left(room + 1);
  if (waiting_.size() + length > room || socket_.inheritance().is_shared() || !begin_wait()) return 0;
  const std::size_t taken = take_in(data, length);
  if (taken == 0 && waiting_.empty()) timer_->end();
  mark();
  return taken;
}

std::size_t Corking::send(IoCursor& data) {
  if (is_corked()) {
    if (const std::size_t held = hold(data)) return held;
  }
  MessageSender& sender = core_.connection->sending();
  if (waiting_.empty()) return sender.send(data);
  const std::size_t room = sender.assured_room();
  const std::size_t taken = take_in(data, room - std::min(room, waiting_.size()));
  let_go();
  return taken + sender.send(data);
}

/// Begins the wait of the first bytes. Returns false where there is no memory, or no service thread.
bool Corking::begin_wait() {
  if (!waiting_.empty()) return true;
  if (!timer_) try {
      timer_ = std::make_shared<CorkTimer>([this] { end_wait(); });
    } catch (const std::bad_alloc&) {
      return false;
    }
  return static_cast<bool>(timer_->begin());
}

/// Copies up to `most` bytes behind those that wait. Returns the number, 0 without memory.
std::size_t Corking::take_in(IoCursor& data, std::size_t most) try {
  waiting_.reserve(waiting_.size() + data.left(most));
  std::size_t taken = 0;
  while (taken < most && !data.done()) {
    const auto piece = data.take(most - taken);
    waiting_.insert(waiting_.end(), piece.begin(), piece.end());
    taken += piece.size();
  }
  return taken;
} catch (const std::bad_alloc&) {
  return 0;
}

void Corking::let_go() noexcept {
  if (waiting_.empty()) return;
  IoCursor all(waiting_.data(), waiting_.size());
  // A failed connection loses what it does not take, as it loses what is under way.
  static_cast<void>(core_.connection->sending().send(all));
  waiting_.clear();
  timer_->end();
  mark();
}

void Corking::end_wait() {
  const std::lock_guard sending(core_.send_lock);
  if (timer_->is_due()) let_go();
}

void Corking::stop() {
  std::shared_ptr<CorkTimer> timer;
  {
    const std::lock_guard sending(core_.send_lock);
    timer = timer_;
  }
  if (timer) timer->stop();
}

void Corking::forget() noexcept {
  abandon(timer_);
  if (!std::exchange(waiting_, {}).empty()) mark();
}

}  // namespace ringsock::rs
