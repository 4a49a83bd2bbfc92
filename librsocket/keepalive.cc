#include "librsocket/keepalive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <mutex>

#include "core/base/abandon.h"
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

std::shared_ptr<Keepalive> ProofsOfLife::start_anew() {
  auto former = take_keepalive();
  start();
  return former;
}

void ProofsOfLife::start() {
  if (keepalive_) return;
  if (socket_.options().integer(SOL_SOCKET, SO_KEEPALIVE) == 0 || !core_.is_connected()) return;
  const auto interval = std::chrono::seconds(socket_.options().integer(IPPROTO_TCP, TCP_KEEPIDLE));
  keepalive_ = std::make_shared<Keepalive>(interval, [this] {
    tick();
    return true;
  });
  if (Status started = keepalive_->start(); !started) log_info("no keepalive: %s", started.error().where);
}

void ProofsOfLife::tick() {
  // Takes events of the connection manager, above all that the peer is gone, unless another thread is doing so.
  if (std::unique_lock guard(core_.setup_lock, std::try_to_lock); guard) socket_.cm_events().take();
  socket_.progress().poll();
  // If no slot is free, earlier proofs are still under way, and another one is not needed.
  if (core_.connection->ends().failure() == 0) (void)core_.connection->tables().send_keepalive();
  socket_.progress().poll();
}

/// For iWARP. Linux's siw may miss a message that arrives before it has finished accepting a connection, and does not
/// notice it until more arrives. A client that sends one message would wait for the answer for ever. No message of the
/// peer proves that it has received ours.
void ProofsOfLife::remind_peer() {
  if (!core_.connection->requests().has_words_by_send()) return;
  auto remind = [this, left = kReminders]() mutable {
    tick();
    return --left > 0 && core_.connection->ends().failure() == 0 && !core_.connection->ends().peer_disconnected();
  };
  reminders_ = std::make_shared<Keepalive>(kReminderInterval, remind);
  if (Status started = reminders_->start(); !started) log_info("no reminders: %s", started.error().where);
}

void ProofsOfLife::forget() {
  abandon(keepalive_);
  abandon(reminders_);
}

}  // namespace ringsock::rs
