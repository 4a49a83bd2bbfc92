#include "librsocket/listener_watch.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/log.h"

namespace ringsock::rs {

namespace {
/// The time that an application has to accept clients before the service thread answers them.
constexpr Nanos kAcceptPatience = std::chrono::milliseconds(1);
/// The longest such time of an application that has accepted its clients lately. The timer and the event before it wake
/// the service thread, which costs as much as a third of a short connection.
constexpr Nanos kLongestPatience = std::chrono::milliseconds(16);
/// The longest wait of clients for a process that cannot accept them.
constexpr Nanos kLookInterval = std::chrono::milliseconds(100);
}  // namespace

Status ListenerWatch::start(int fd) {
  std::lock_guard guard(lock_);
  auto watch = runtime::service_thread().watch(fd, EPOLLIN, [self = weak_from_this()](std::uint32_t) {
    if (auto watch = self.lock()) watch->on_event();
  });
  if (!watch) return watch.error();
  watch_ = *watch;
  return ok();
}

void ListenerWatch::stop() {
  {
    std::lock_guard guard(lock_);
    stopped_ = true;
  }
  runtime::service_thread().unwatch(watch_);
  // Only the callback of that watch adds others, and only while it is not stopped.
  for (const auto watch : part_watches_) runtime::service_thread().unwatch(watch);
  for (const auto* timer : {&timer_, &part_timer_, &look_timer_}) {
    if (const auto id = timer->load()) runtime::service_thread().cancel(id);
  }
}

void ListenerWatch::on_event() {
  {
    std::unique_lock guard(lock_);
    if (stopped_) return;
    if (may_be_left_to_a_program()) return leave_until_accept();
    if (!socket_.inheritance().is_shared()) {
      const bool waits = wait_for_application();
      guard.unlock();
      return waits ? void() : on_patience_over();
    }
    runtime::service_thread().pause(watch_);
    waits_to_be_alone_.store(true);
    if (!socket_.inheritance().is_shared()) return is_alone();
    if (!part_watches_.empty()) return;
  }
  watch_parts();
}

bool ListenerWatch::may_be_left_to_a_program() const {
  const Inheritance& inheritance = socket_.inheritance();
  return inheritance.family() != nullptr && !inheritance.is_shared() && socket_.listener().accept_calls() == 0;
}

void ListenerWatch::leave_until_accept() {
  runtime::service_thread().pause(watch_);
  waits_for_accept_.store(true);
  if (socket_.listener().accept_calls() != 0) is_accepted();
}

/// Pauses the watch for a while. Returns false without memory, or a thread, for that.
bool ListenerWatch::wait_for_application() try {
  const Nanos now = monotonic_now();
  const bool is_soon = resumed_at_ != Nanos::min() && now - resumed_at_ < kLongestPatience;
  patience_ = is_soon ? std::min(2 * patience_, kLongestPatience) : kAcceptPatience;
  calls_before_ = socket_.listener().accept_calls();
  runtime::service_thread().pause(watch_);
  auto timer = runtime::service_thread().schedule(now + patience_, [self = weak_from_this()] {
    if (auto watch = self.lock()) watch->on_patience_over();
  });
  if (timer) timer_.store(*timer);
  return static_cast<bool>(timer);
} catch (const std::bad_alloc&) {
  return false;
}

void ListenerWatch::on_patience_over() {
  const bool has_accepted = socket_.listener().accept_calls() != calls_before_;
  resumed_at_ = has_accepted ? monotonic_now() : Nanos::min();
  if (!serve_clients()) resume();
}

/// Returns whether the queue is full. Clients for which there is no memory are served after the watch has gone on.
bool ListenerWatch::serve_clients() try {
  const bool is_ours = socket_.listener().accept_calls() == calls_before_ && !socket_.inheritance().is_shared();
  return is_ours && socket_.listener().progress_in_background(waits_for_room_);
} catch (const std::bad_alloc&) {
  return false;
}

void ListenerWatch::resume() {
  if (Status resumed = runtime::service_thread().resume(watch_); !resumed) {
    log_warn("a listener is not served in the background any more: %s", resumed.error().where);
  }
}

// -- parts that no other process has

/// The socket's lock is taken before ours.
void ListenerWatch::watch_parts() {
  const std::vector<int> fds = socket_.listener().parts().descriptors();
  std::lock_guard guard(lock_);
  if (stopped_) return;
  part_watches_.reserve(fds.size());
  for (const int fd : fds) {
    auto watch = runtime::service_thread().watch(fd, EPOLLIN, [self = weak_from_this()](std::uint32_t) {
      if (auto watch = self.lock()) watch->on_part_event();
    });
    if (watch) {
      part_watches_.push_back(*watch);
    } else {
      log_warn("a listener's clients wait for its application: %s", watch.error().where);
    }
  }
}

void ListenerWatch::on_part_event() {
  std::lock_guard guard(lock_);
  if (stopped_) return;
  if (!socket_.inheritance().is_shared()) {
    for (const auto watch : std::exchange(part_watches_, {})) runtime::service_thread().unwatch(watch);
    return;
  }
  runtime::ServiceThread::TimerCallback patience_over = [self = weak_from_this()] {
    if (auto watch = self.lock()) watch->on_part_patience_over();
  };
  for (const auto watch : part_watches_) runtime::service_thread().pause(watch);
  parts_paused_ = true;
  calls_before_ = socket_.listener().accept_calls();
  auto timer = runtime::service_thread().schedule(monotonic_now() + kAcceptPatience, std::move(patience_over));
  if (timer) {
    part_timer_.store(*timer);
  } else {
    resume_parts();
  }
}

void ListenerWatch::on_part_patience_over() { serve_parts(socket_.listener().accept_calls() == calls_before_); }

void ListenerWatch::serve_parts(bool take_in) {
  ListenerParts::Outcome outcome{};
  try {
    outcome = socket_.listener().parts().serve(take_in);
  } catch (const std::bad_alloc&) {
    outcome = ListenerParts::Outcome::room;  // to serve them after the watches have gone on
  }
  if (outcome == ListenerParts::Outcome::room) resume_parts();
}

void ListenerWatch::resume_parts() {
  if (!std::exchange(parts_paused_, false)) return;
  for (const auto watch : part_watches_) {
    if (Status resumed = runtime::service_thread().resume(watch); !resumed) {
      log_warn("a listener is not served in the background any more: %s", resumed.error().where);
    }
  }
}

void ListenerWatch::look_later() {
  std::lock_guard guard(lock_);
  if (stopped_ || std::exchange(looks_, true)) return;
  auto timer = runtime::service_thread().schedule(monotonic_now() + kLookInterval, [self = weak_from_this()] {
    if (auto watch = self.lock()) watch->on_look();
  });
  if (timer) look_timer_.store(*timer);
}

void ListenerWatch::on_look() {
  {
    std::lock_guard guard(lock_);
    looks_ = false;
  }
  serve_parts(false);
}

}  // namespace ringsock::rs
