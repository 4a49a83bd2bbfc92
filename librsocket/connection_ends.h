// How a connection ends.
#pragma once

#include <atomic>

namespace ringsock::rs {

struct SavedConnection;

/// Which ends of a connection have come: the peer's SHUTDOWN and DISCONNECT, a failure, a flush. None is taken back.
/// After a failure no end of the peer counts: who failed hangs up, and the connection manager reports that to it as the
/// peer's end, which would make a stream that was cut off look complete.
/// Threads: any.
class ConnectionEnds {
 public:
  [[nodiscard]] bool peer_shut_down() const { return peer_shut_down_.load(std::memory_order_acquire); }
  [[nodiscard]] bool peer_disconnected() const { return peer_disconnected_.load(std::memory_order_acquire); }
  /// Returns whether the peer has ended its stream, alone or with the connection, before any failure.
  [[nodiscard]] bool has_peer_ended() const { return peer_shut_down() || peer_disconnected(); }
  /// Returns the errno value of the failure that ended the connection, or 0. Bytes that arrived before it remain
  /// readable.
  [[nodiscard]] int failure() const { return failure_.load(std::memory_order_acquire); }

  /// Called for the peer's SHUTDOWN: no more bytes come.
  void peer_stopped() { note_unless_failed(peer_shut_down_); }
  /// Called when SHUTDOWN has been sent to the peer.
  void stopped() { shut_down_.store(true, std::memory_order_release); }
  /// Returns whether both sides have sent SHUTDOWN: the connection is over whatever becomes of the peer.
  [[nodiscard]] bool both_shut_down() const { return peer_shut_down() && shut_down_.load(std::memory_order_acquire); }
  /// Returns whether only the peer has ended the connection: what is sent to it is not read any more.
  [[nodiscard]] bool is_half_open() const {
    return peer_disconnected() && !closing_.load(std::memory_order_acquire) &&
           !shut_down_.load(std::memory_order_acquire);
  }
  /// Called when shutdown(2) has ended both directions here: as in TCP, bytes that come afterwards are a reset.
  void refuse_data() { refuses_data_.store(true, std::memory_order_release); }
  [[nodiscard]] bool refuses_data() const { return refuses_data_.load(std::memory_order_acquire); }
  /// Called for the peer's DISCONNECT, or when the connection manager reports it: the stream ends after the bytes that
  /// have arrived.
  void peer_left() { note_unless_failed(peer_disconnected_); }
  /// Ends the connection with this error (errno value), unless it had failed before.
  void fail(int error);

  /// Makes flushed requests expected instead of a failure.
  void expect_flush() { closing_.store(true, std::memory_order_release); }
  /// Returns whether flushed requests mean no more than is known.
  [[nodiscard]] bool expects_flush() const { return closing_.load(std::memory_order_relaxed) || peer_disconnected(); }
  /// Called when receives were flushed for a reason that is not known yet.
  /// @param will_be_told  verbs::DeviceTraits::works_in_background
  void note_flush(bool will_be_told);
  /// Returns whether the queue pair has been flushed for a reason that is not known yet. If the peer caused it, the
  /// connection manager will report it.
  [[nodiscard]] bool is_flushed() const {
    return flushed_.load(std::memory_order_acquire) && failure() == 0 && !peer_disconnected();
  }

  // -- fork(2): see StateOf. Ends that this process has seen by itself stay.
  void save(SavedConnection& saved) const;
  [[nodiscard]] static bool is_possible(const SavedConnection& saved);
  void restore(const SavedConnection& saved);

 private:
  void note_unless_failed(std::atomic<bool>& end) {
    if (failure() == 0) end.store(true, std::memory_order_release);
  }

  std::atomic<bool> peer_shut_down_{false};
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> peer_disconnected_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> refuses_data_{false};
  std::atomic<bool> flushed_{false};
  std::atomic<int> failure_{0};
};

}  // namespace ringsock::rs
