// The listening side of a stream socket.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/runtime/endpoint.h"
#include "core/transports/way.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/accept_turns.h"
#include "librsocket/client_queue.h"
#include "librsocket/family_listener.h"
#include "librsocket/listener_parts.h"
#include "librsocket/request_ahead.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

class ListenerWatch;

/// Takes in clients, answers them and gives them out. Functions take setup_lock, which guards what is not atomic,
/// unless they say that it must be held. Clients are destroyed without it: their destructors wait for the service
/// thread, which may be waiting for the lock.
class Listener final : public transports::Listening, public StreamPart {
 public:
  Listener(StreamSocket& socket, StreamCore& core)
      : StreamPart(socket, core), of_family(socket, core), parts_(socket, core) {}

  Status listen(int backlog);
  Result<int> accept(SocketAddress& peer, int flags);

  void stop_listening() override;
  void refuse_clients() override;
  [[nodiscard]] bool refuses_clients() override;
  void forget_listening() override;
  void end_for_all() override;
  [[nodiscard]] bool has_ended_for_all() const noexcept override;
  [[nodiscard]] bool nobody_waits(int also) override;
  [[nodiscard]] bool has_half_open() override;
  Result<int> accept_waiting(SocketAddress& peer, int flags) override;
  [[nodiscard]] bool is_strangers_too() const noexcept override;
  Status listen_in_family(int backlog) override;

  /// Returns whether a client waits, for the poller.
  bool has_client();
  /// Returns runtime::Readiness::taken_in_turns(). Threads: any.
  [[nodiscard]] std::uint64_t turns() const noexcept { return is_accepted_in_turns() ? serial_ : 0; }
  /// Adds to `fds` what a thread sleeps on that accepts in turn. setup_lock must be held.
  void arm_turns(runtime::WaitFds& fds);
  /// Returns the number of calls of accept(2). Threads: any.
  [[nodiscard]] std::uint64_t accept_calls() const { return accept_calls_.load(std::memory_order_relaxed); }

  /// Moves clients that have confirmed to the queue. Called when one of the half-open clients has, or never will, on
  /// the service thread, without locks.
  void half_open_changed();
  /// Answers clients on the service thread, without locks. Returns true when the queue is full, and then also sets
  /// `waits_for_room`, before accept() can make room.
  bool progress_in_background(std::atomic<bool>& waits_for_room);
  /// Serves listeners of a process that connects to itself and waits for the answer before it calls accept(). Called
  /// without locks.
  static void serve_unwatched_listeners();

  /// Starts to serve the listener on the service thread. Without one clients wait for accept(), which tries again.
  /// setup_lock must be held.
  void start_watch();
  /// Returns what serves the listener, for the caller to stop it without locks. setup_lock must be held.
  [[nodiscard]] std::shared_ptr<ListenerWatch> take_watch() { return std::move(watch_); }
  /// Returns the clients that will not be accepted, for the caller to drop them without the lock. setup_lock must be
  /// held.
  Clients take_clients();
  /// The same for the clients of the parts that other processes do not have (ListenerParts).
  Clients take_clients_of_parts();
  /// Takes clients of these parts if `take_in`, and looks later whether another process listens. Returns whether the
  /// queue is full. setup_lock must be held.
  bool serve_parts(bool take_in);
  /// Forgets the descriptor of nobody_waits(). Threads: any.
  void forget_queue_fd() { queue_fd_.store(-1, std::memory_order_relaxed); }
  /// In a forked child.
  void forget_threads(bool still_listens);

  [[nodiscard]] ListenerParts& parts() { return parts_; }
  FamilyListener of_family;
  AcceptTurns accept_turns;
  RequestAhead ahead;

 private:
  [[nodiscard]] bool is_accepted_in_turns() const noexcept;
  // setup_lock must be held.
  void progress(std::size_t room);
  /// Takes clients of `from`, the listener or a part of it, as long as the queue has `room`. The rest keeps the
  /// listener readable.
  void take_in_clients(verbs::ConnectionId& from, std::size_t room);
  void note_admitted();
  void drop_those_taken_elsewhere();
  Result<int> give_out_client(SocketAddress& peer, int flags, std::unique_lock<Mutex>& guard);
  bool admit(verbs::CmEvent& event);
  Result<runtime::Ref> make_accepted(verbs::CmEvent& event);
  void keep_half_open(Clients accepted);
  void drop_id();
  bool serve_unwatched();  ///< takes the lock

  ListenerParts parts_;
  ClientQueue accept_queue_;
  ClientQueue half_open_;  ///< answered and not confirmed; oldest first
  std::size_t backlog_ = 0;
  std::uint64_t serial_ = 0;
  /// A descriptor that is readable while the id has work, for calls without the lock; -1 when it is not known.
  std::atomic<int> queue_fd_{-1};
  std::atomic<bool> takes_in_{false};           ///< clients are on their way from the id to the queue
  int error_ = 0;                               ///< why the last client could not be taken
  std::atomic<std::uint64_t> accept_calls_{0};  ///< shows the service thread that the application calls accept()
  bool watch_again_ = false;  ///< the service thread does not serve it: since a fork, or there is none
  std::shared_ptr<ListenerWatch> watch_;
  /// Threads that end the listener at once, by shutdown(2) and in accept(2), do it one after the other. Taken before
  /// setup_lock, never on the service thread.
  Mutex ending_;
};

}  // namespace ringsock::rs
