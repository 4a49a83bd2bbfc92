#include "librsocket/keepalive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <mutex>

#include "core/base/log.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
/// The time after which a peer is reminded, and the interval of reminders.
constexpr Nanos kReminderInterval = std::chrono::milliseconds(100);
constexpr int kReminders = 3;
}  // namespace

Status Keepalive::start() {
  std::lock_guard guard(lock_);
  return schedule_next();
}

Status Keepalive::schedule_next() {
  auto timer = runtime::service_thread().schedule(monotonic_now() + interval_, [self = weak_from_this()] {
    if (auto keepalive = self.lock()) keepalive->run();
  });
  if (!timer) return timer.error();
  timer_ = *timer;
  return ok();
}

void Keepalive::run() {
  {
    std::lock_guard guard(lock_);
    if (stopped_) return;
  }
  if (!tick_()) return;
  std::lock_guard guard(lock_);
  if (stopped_) return;
  if (Status next = schedule_next(); !next) log_warn("keepalive stops: %s", next.error().where);
}

void Keepalive::stop() {
  runtime::ServiceThread::Id timer = 0;
  {
    std::lock_guard guard(lock_);
    stopped_ = true;
    timer = timer_;
  }
  runtime::service_thread().cancel(timer);  // waits for a tick that runs now
}

// -- the socket's side

void StreamSocket::update_keepalive() {
  stop_keepalive();
  if (options_.get(SOL_SOCKET, SO_KEEPALIVE) == 0 || !is_connected()) return;
  const auto interval = std::chrono::seconds(options_.get(IPPROTO_TCP, TCP_KEEPIDLE));
  keepalive_ = std::make_shared<Keepalive>(interval, [this] {
    keepalive_tick();
    return true;
  });
  if (Status started = keepalive_->start(); !started) log_info("no keepalive: %s", started.error().where);
}

void StreamSocket::stop_keepalive() {
  if (auto keepalive = std::exchange(keepalive_, nullptr)) keepalive->stop();
}

/// Called on the service thread without locks; those of the queue pair are sufficient.
void StreamSocket::keepalive_tick() {
  // Takes events of the connection manager, above all that the peer is gone, unless another thread is doing so.
  if (std::unique_lock guard(setup_lock_, std::try_to_lock); guard) take_cm_events();
  progress();
  // If no slot is free, earlier proofs are still under way, and another one is not needed.
  if (connection_->failure() == 0) (void)connection_->send_keepalive();
  progress();
}

/// For iWARP. Linux's siw may miss a message that arrives before it has finished accepting a connection, and does not
/// notice it until more arrives. A client that sends one message would wait for the answer for ever. No message of the
/// peer proves that it has received ours.
void StreamSocket::remind_peer() {
  if (!connection_->has_words_by_send()) return;
  auto remind = [this, left = kReminders]() mutable {
    keepalive_tick();
    return --left > 0 && connection_->failure() == 0 && !connection_->peer_disconnected();
  };
  reminders_ = std::make_shared<Keepalive>(kReminderInterval, remind);
  if (Status started = reminders_->start(); !started) log_info("no reminders: %s", started.error().where);
}

}  // namespace ringsock::rs
