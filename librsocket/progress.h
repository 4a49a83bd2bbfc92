// What a stream socket does to learn of its peer.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Polls a connection and looks for its end. Threads: any, without locks of the socket; setup_lock is taken where
/// something must be asked of the connection manager.
class Progress final : public StreamPart {
 public:
  Progress(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Polls completions and wakes sleeping threads.
  void poll() {
    if (core_.connection->poll()) note_changes();
  }
  /// The second half of poll(), after Connection::poll() has returned true.
  void note_changes();
  /// Called when a send has left bytes: the next room is an event for edge-triggered waiters, whether or not anything
  /// was posted since room was last reported.
  void note_short_send();
  /// Asks the connection manager, which knows of a reset before polls find it.
  void look_for_reset();
  /// Returns the error that the next read or write would report, and consumes it, for SO_ERROR.
  int look_for_error();
  /// For questions about the connection, which must not take it from another process that may want it, unless the peer
  /// has left.
  void look_if_alone() noexcept;
  /// Makes the device check its peers when this has not been done of late. Returns whether it did.
  bool look_closely_if_read_seldom();
  /// Looks for the peer's end on behalf of a thread that only sends: soon if it sends much, otherwise before its next
  /// send. After a send the look would tell nothing: the peer may have read the message, answered it and ended
  /// meanwhile.
  void look_for_sender();
  [[nodiscard]] bool has_not_looked_for_long() const {
    constexpr std::uint64_t kLong = 1 << 21;  // half a millisecond to two
    return ticks() - looked_closely_at_.load(std::memory_order_relaxed) >= kLong;
  }
  /// Fails with EAGAIN while the connection is being made.
  Status require_connected(int error_if_not);

 private:
  void hang_up();
  void ask_why_flushed();
  bool is_time_for_close_look();

  std::atomic<std::uint32_t> posted_when_told_{0};   ///< MessageSender::posted() when room was last reported as new
  std::atomic<bool> wants_room_{false};              ///< a send has left bytes, and no room was reported since
  bool asked_why_flushed_ = false;                   ///< under setup_lock
  std::atomic<bool> hung_up_{false};                 ///< the peer has been told of the connection's failure
  std::atomic<std::uint64_t> looked_closely_at_{0};  ///< in ticks()
};

}  // namespace ringsock::rs
