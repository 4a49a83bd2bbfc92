#include "librsocket/listener_watch.h"

#include <utility>

#include "core/base/log.h"

namespace ringsock::rs {

namespace {
/// The time that an application has to accept clients before the service thread answers them.
constexpr Nanos kAcceptPatience = std::chrono::milliseconds(1);
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
    std::lock_guard guard(lock_);
    if (stopped_) return;
    if (!socket_.inheritance().is_shared()) return wait_for_application();
    runtime::service_thread().pause(watch_);
    waits_to_be_alone_.store(true);
    if (!socket_.inheritance().is_shared()) return is_alone();
    if (!part_watches_.empty()) return;
  }
  watch_parts();
}

void ListenerWatch::wait_for_application() {
  calls_before_ = socket_.listener().accept_calls();
  runtime::service_thread().pause(watch_);
  auto timer = runtime::service_thread().schedule(monotonic_now() + kAcceptPatience, [self = weak_from_this()] {
    if (auto watch = self.lock()) watch->on_patience_over();
  });
  if (timer) {
    timer_.store(*timer);
  } else {
    resume();
  }
}

void ListenerWatch::on_patience_over() {
  bool full = false;
  if (socket_.listener().accept_calls() == calls_before_ && !socket_.inheritance().is_shared()) {
    full = socket_.listener().progress_in_background(waits_for_room_);
  }
  if (!full) resume();
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
  for (const auto watch : part_watches_) runtime::service_thread().pause(watch);
  parts_paused_ = true;
  calls_before_ = socket_.listener().accept_calls();
  auto timer = runtime::service_thread().schedule(monotonic_now() + kAcceptPatience, [self = weak_from_this()] {
    if (auto watch = self.lock()) watch->on_part_patience_over();
  });
  if (timer) {
    part_timer_.store(*timer);
  } else {
    resume_parts();
  }
}

void ListenerWatch::on_part_patience_over() {
  const bool application_accepts = socket_.listener().accept_calls() != calls_before_;
  if (socket_.listener().parts().serve(!application_accepts) == ListenerParts::Outcome::room) resume_parts();
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
  if (socket_.listener().parts().serve(false) == ListenerParts::Outcome::room) resume_parts();
}

}  // namespace ringsock::rs
