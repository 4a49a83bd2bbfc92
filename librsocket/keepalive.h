// Proofs of life without calls of the application: SO_KEEPALIVE, and repetitions after the first message.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/base/clock.h"
#include "core/runtime/service_thread.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Calls `tick` on the service thread once in `interval`, from start() until it returns false or stop() is called.
class Keepalive : public std::enable_shared_from_this<Keepalive> {
 public:
  Keepalive(Nanos interval, std::function<bool()> tick) : interval_(interval), tick_(std::move(tick)) {}
  /// Errors: those of ServiceThread::schedule().
  Status start();
  /// After return `tick` does not run.
  void stop();

 private:
  Status schedule_next();
  void run();

  const Nanos interval_;
  const std::function<bool()> tick_;
  std::mutex lock_;
  bool stopped_ = false;
  runtime::ServiceThread::Id timer_ = 0;
};

/// Proves to the peer of a connection that this end lives, and finds out whether the peer does. Functions need
/// setup_lock.
class ProofsOfLife final : public StreamPart {
 public:
  ProofsOfLife(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Starts as SO_KEEPALIVE and its intervals say, unless it runs: for a connection that has just been made, and for a
  /// process that has become its user.
  void start();
  /// Does what SO_KEEPALIVE and its intervals say now. Returns what does no longer, as take_keepalive().
  [[nodiscard]] std::shared_ptr<Keepalive> start_anew();
  /// Repeats the first proofs to the peer of a connection that we have asked for.
  void remind_peer();
  /// Return what sends proofs, and what repeats the first ones, for the caller to stop it without locks: a tick that
  /// finds the peer gone waits for setup_lock. Called under setup_lock: two threads may end a listener at once, one by
  /// shutdown(2) and one in accept(2).
  [[nodiscard]] std::shared_ptr<Keepalive> take_keepalive() { return std::move(keepalive_); }
  [[nodiscard]] std::shared_ptr<Keepalive> take_reminders() { return std::move(reminders_); }
  /// In a forked child, which does not have the service thread.
  void forget();

 private:
  void tick();  ///< on the service thread without locks; those of the queue pair are sufficient

  std::shared_ptr<Keepalive> keepalive_;
  std::shared_ptr<Keepalive> reminders_;
};

}  // namespace ringsock::rs
