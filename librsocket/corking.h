// TCP_CORK and MSG_MORE: small sends that wait for more, so that the peer gets them in one piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "librsocket/io_vector.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Ends a wait after 200 ms, on the service thread (tcp(7): the ceiling of TCP_CORK). One timer serves all waits of a
/// socket: it looks when it runs out, and goes on to the end of the present wait. So beginning and ending a wait is
/// usually a store.
class CorkTimer : public std::enable_shared_from_this<CorkTimer> {
 public:
  /// @param end_wait  called without locks
  explicit CorkTimer(std::function<void()> end_wait) : end_wait_(std::move(end_wait)) {}

  /// Threads: begin() and end() by one at a time. Errors: those of ServiceThread::schedule(); the wait has not begun.
  Status begin();
  void end() { until_.store(Nanos::max()); }
  /// Returns whether a wait is longer than it may be. Threads: any.
  [[nodiscard]] bool is_due() const { return monotonic_now() >= until_.load(); }
  /// After return `end_wait` does not run.
  void stop();

 private:
  Status schedule(Nanos when);
  void run();
  /// Returns whether the timer is not needed, and has ended.
  bool ends();

  static constexpr Nanos kCeiling = std::chrono::milliseconds(200);
  const std::function<void()> end_wait_;
  std::atomic<Nanos> until_{Nanos::max()};
  std::atomic<bool> runs_{false};
  std::mutex lock_;  ///< of end_wait_
  bool stopped_ = false;
};

/// The bytes of sends that wait. Only as many wait as the peer has room for, so that they can leave at any time: once
/// the socket is uncorked, more bytes come than may wait, 200 ms have passed, or before anything that depends on what
/// was sent (shutdown(2), close(2), fork(2), the end of the process, riowrite(3)). A connection that another process
/// has, too, lets nothing wait. A process that is killed loses what waits, 200 ms at most.
///
/// Threads: functions need send_lock, unless they say something else.
class Corking final : public StreamPart {
 public:
  Corking(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Has sends take the way through here if the socket is corked, or if something waits. Call it for a connection that
  /// is being made, too.
  void mark();
  /// Called when TCP_CORK has changed. Takes send_lock.
  void option_changed();
  /// Called when TCP_NODELAY was switched on: what waits leaves. Takes send_lock.
  void push();

  /// Lets `data` wait if it may, and advances it. Returns the bytes taken: all or none.
  std::size_t hold(IoCursor& data);
  /// Lets `data` wait if the socket is corked and it may. Otherwise sends as much of it as fits, in one piece with what
  /// waits. Advances it. Returns the bytes taken.
  std::size_t send(IoCursor& data);
  /// Sends what waits.
  void let_go() noexcept;

  /// Ends the timer. Threads: without locks.
  void stop();
  /// In a forked child, which has neither the service thread nor what waits.
  void forget() noexcept;

 private:
  [[nodiscard]] bool is_corked() const;
  bool begin_wait();
  std::size_t take_in(IoCursor& data, std::size_t most);
  void end_wait();  ///< on the service thread

  std::vector<std::byte> waiting_;
  std::shared_ptr<CorkTimer> timer_;
};

}  // namespace ringsock::rs
