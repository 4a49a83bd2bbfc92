// What the parts of a stream socket share.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>

#include "core/base/biased_mutex.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/runtime/endpoint.h"
#include "core/statistics/statistics.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/connection.h"

namespace ringsock::rs {

struct Process;
class StreamApi;
class StreamSocket;

/// The state of a stream socket, its locks, its connection, and which of the connection's ends have come.
///
/// Life: initial → bound → listening, or → connecting → connected (or → failed, from which connect() starts again). A
/// connected socket stays `connected` until its end; the Connection knows whether the peer has gone.
///
/// Locks, in the order in which they may nest: setup_lock (state, id, connection manager, options), send_lock (one
/// sender), receive_lock (one reader); the Connection's completion lock is innermost. Watchers are notified without any
/// of them.
///
/// `connection` is set before the state becomes `connected` and stays until the destructor, so a thread that has seen
/// that state (acquire) may use it without a lock.
struct StreamCore {
  enum class State : std::uint8_t { initial, bound, listening, connecting, connected, failed };

  /// @param fd  StreamSocket::descriptor()
  StreamCore(runtime::Endpoint& endpoint, Process& process, int domain, int fd);

  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_connected() const { return state() == State::connected; }
  /// Publishes the new state, in which the socket is complete. setup_lock must be held.
  void set_state(State next) {
    if (next == State::connected && shows_first) connection->receiving().show_first(true);
    state_.store(next, std::memory_order_release);
    describe();
  }
  /// Has received bytes of the connection, of this one or of one to come, be seen by the application's function first.
  /// setup_lock must be held.
  void show_first(bool on) {
    shows_first = on;
    if (is_connected()) connection->receiving().show_first(on);
  }
  /// Returns what VMA's Extra API has asked for, null: nothing yet. Threads: any.
  [[nodiscard]] StreamApi* api() const noexcept { return asked.load(std::memory_order_acquire); }
  /// Updates the description for rsstat. setup_lock must be held.
  void describe();
  [[nodiscard]] runtime::SocketPath path() const;
  [[nodiscard]] SocketAddress as_seen_here(const SocketAddress& address) const {
    return domain == AF_INET6 ? address.mapped() : address;
  }

  // The ends of a connection. Threads: any; a connection must have been made.
  [[nodiscard]] bool at_end_of_stream() const {
    return read_shut.load(std::memory_order_acquire) || connection->ends().peer_shut_down() ||
           connection->ends().peer_disconnected() || connection->ends().failure() != 0;
  }
  [[nodiscard]] bool at_end_of_sending() const {
    return write_shut.load(std::memory_order_acquire) || connection->ends().peer_disconnected() ||
           connection->ends().failure() != 0;
  }
  [[nodiscard]] bool is_half_open() const {
    return connection->ends().peer_disconnected() && connection->ends().failure() == 0 &&
           !write_shut.load(std::memory_order_acquire);
  }
  /// Returns whether both directions have ended, so that the socket has no peer any more.
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_suspended() const { return suspended.load(std::memory_order_acquire); }
  /// Sends DISCONNECT. send_lock must be held.
  void disconnect();

  // Errors, each of which is reported once. Threads: any.
  /// Returns the error of a send at_end_of_sending(): another thread may have closed the descriptor meanwhile, which it
  /// says first.
  [[nodiscard]] Error end_of_sending(const char* where) const {
    return {closed.load(std::memory_order_acquire) ? EBADF : EPIPE, where};
  }
  /// Returns the error to report: Linux reports a reset as EPIPE after the peer's end of the stream.
  [[nodiscard]] int failure_as_told() const;
  /// Returns the error that the next call must report, or 0.
  int take_error();

  Process& process;
  const int domain;
  Mutex setup_lock;
  std::unique_ptr<verbs::ConnectionId> id;
  bool shows_first = false;                ///< under setup_lock
  std::atomic<StreamApi*> asked{nullptr};  ///< api(), which the socket makes and destroys

  // Each call uses the two cache lines that begin here.
  alignas(64) BiasedMutex send_lock;
  BiasedMutex receive_lock;
  std::unique_ptr<Connection> connection;  ///< destroyed before id
  runtime::Endpoint& endpoint;
  runtime::SocketStatistics statistics;
  std::atomic<bool> read_shut{false};
  std::atomic<bool> write_shut{false};
  std::atomic<bool> closed{false};
  std::atomic<bool> sent_into_the_void{false};  ///< something was sent after the peer's end
  std::atomic<bool> failure_taken{false};       ///< the connection's failure has been reported
  std::atomic<bool> suspended{false};           ///< since a fork(2) (Inheritance)
  std::atomic<bool> connection_owns_fd{false};  ///< fd is the connection's own descriptor

 private:
  std::atomic<State> state_{State::initial};

 public:
  std::atomic<int> pending_error{0};  ///< SO_ERROR
  std::atomic<int> fd;
  /// When work must be done although no descriptor is readable, or Nanos::max().
  std::atomic<Nanos> deadline{Nanos::max()};
};

/// A part of a stream socket. It finds its siblings by the socket.
class StreamPart {
 public:
  StreamPart(const StreamPart&) = delete;
  StreamPart& operator=(const StreamPart&) = delete;

 protected:
  using State = StreamCore::State;
  StreamPart(StreamSocket& socket, StreamCore& core) : socket_(socket), core_(core) {}
  ~StreamPart() = default;

  StreamSocket& socket_;
  StreamCore& core_;
};

}  // namespace ringsock::rs
