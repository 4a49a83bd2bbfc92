// A stream rsocket, as made by rsocket(…, SOCK_STREAM, …).
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/config/rsocket_config.h"
#include "core/runtime/endpoint.h"
#include "core/statistics/statistics.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/client_queue.h"
#include "librsocket/cm_watch.h"
#include "librsocket/connection.h"
#include "librsocket/family_record.h"
#include "librsocket/io_vector.h"
#include "librsocket/iomap.h"
#include "librsocket/keepalive.h"
#include "librsocket/socket_options.h"

namespace ringsock::rs {

struct Process;

/// Life: initial → bound → listening, or → connecting → connected (or → failed, from which connect() starts again). A
/// connected socket stays `connected` until its end; the Connection knows whether the peer has gone.
///
/// Locks, in the order in which they may nest: setup_lock_ (states, connection manager, options), send_lock_ (one
/// sender), receive_lock_ (one reader); the Connection's completion lock is innermost. notify_watchers() is called
/// without any.
///
/// connection_ is set before the state becomes `connected` and stays until the destructor, so a thread that has seen
/// that state (acquire) may use it without a lock.
class StreamSocket : public runtime::Endpoint {
 public:
  /// @param domain  AF_INET or AF_INET6
  /// @param fd      the descriptor it will be known by: a kernel TCP socket that holds the port, owned by the caller
  StreamSocket(Process& process, int domain, int fd);
  ~StreamSocket() override;

  Status bind(const sockaddr* address, socklen_t length) override;
  Status listen(int backlog) override;
  Result<int> accept(SocketAddress& peer, int flags) override;
  /// Ends the ring of a listener in all processes that have it. Clients that were answered can still be accepted;
  /// others are refused.
  void end_ring_for_all();
  /// Returns whether any process that has this listener has ended its ring.
  [[nodiscard]] bool has_ring_ended() const noexcept;
  /// Returns true when no client waits at a listener that several threads accept from, nor at the descriptor `also`.
  /// Takes no lock, for which those threads would wait in turn. May return false although no client waits.
  [[nodiscard]] bool nobody_waits(int also);
  /// Returns whether a listener has clients that were answered but have not confirmed.
  [[nodiscard]] bool has_half_open();
  /// Accepts a client that has been answered already. Error: EAGAIN when there is none.
  Result<int> accept_waiting(SocketAddress& peer, int flags);
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  /// Returns the peer's address even when both directions have ended.
  Result<SocketAddress> last_peer();
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;
  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags) override;
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override;
  void keep_error(int code) noexcept override;
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;

  std::uint32_t ready() noexcept override;
  void look_for_end() noexcept override;
  runtime::WaitFds arm() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override { return state() == State::listening; }
  [[nodiscard]] std::uint64_t taken_in_turns() const noexcept override {
    return state() == State::listening && is_accepted_in_turns() ? listener_serial_ : 0;
  }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override {
    return is_connected() && connection_->works_on_our_cpus();
  }
  void woken() noexcept override;
  /// Until data has come: when the application called connect(2). A listener answers its clients in that order.
  std::uint32_t arrival_stamp() noexcept override {
    if (!is_connected()) return 0;
    const std::uint32_t stamp = connection_->arrival_stamp();
    return stamp != 0 ? stamp : connect_stamp_;
  }
  Nanos deadline() noexcept override { return deadline_.load(std::memory_order_relaxed); }
  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  void descriptor_vanished(int fd) noexcept override;
  void give_up_descriptor() noexcept override;
  /// Makes the descriptors of a connection that another process carries on refer to `kernel_socket`, also in epoll
  /// sets. The caller keeps `kernel_socket`. Must not be called inside a read-side section.
  void go_on_as(int kernel_socket);
  Nanos linger() noexcept override;
  bool is_drained() noexcept override;
  runtime::SocketStatistics* statistics() noexcept override { return &statistics_; }
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void before_fork() noexcept override;
  void after_fork(ForkSide side) noexcept override;
  void process_ends() noexcept override;
  void process_goes_on() noexcept override;
  bool owns_descriptor(int fd) const noexcept override {
    return fd == fd_ && connection_owns_fd_.load(std::memory_order_acquire);
  }

  /// FD_CLOEXEC as the application sees it. The descriptor itself is always closed on exec: a program that does not
  /// know the connection must not keep it alive.
  std::atomic<bool> close_on_exec{false};
  /// O_APPEND and O_ASYNC of F_SETFL, which have no effect on a ring.
  std::atomic<int> other_status_flags{0};
  /// F_SETOWN or F_SETSIG was called.
  std::atomic<bool> has_signal_owner{false};
  /// The process that last marked a descriptor to be kept over exec(2), or made such a descriptor. If a child does so
  /// after fork(2), it intends the descriptor for its next program; a descriptor that merely stays open may be a leak.
  std::atomic<pid_t> keeper{0};

  // Direct placement (riomap(3) and so on).
  Result<off_t> map_buffer(void* data, std::size_t length, int prot, off_t offset);
  Status unmap_buffer(void* data, std::size_t length);
  /// Makes one attempt to write [offset, offset + size). Returns the bytes written, 0 when no buffer is mapped there.
  /// Error: EAGAIN the queue is full.
  Result<std::size_t> write_direct(const std::byte* data, std::size_t size, std::uint64_t offset);

  /// Returns its descriptor number; that of a duplicate after the first one was closed.
  [[nodiscard]] int descriptor() const { return fd_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_connected() const { return state() == State::connected; }
  /// Returns whether other processes may have it open; never false when they have.
  [[nodiscard]] bool is_shared() const noexcept;
  /// Returns whether another process has used it since a fork: calls fail with EIO here.
  [[nodiscard]] bool is_used_elsewhere() const noexcept;
  /// Returns whether another process has used it since the fork, so that the state here is outdated.
  [[nodiscard]] bool has_old_state() const noexcept {
    const FamilyRecord* const record = family();
    return record != nullptr && record->epoch.load() != epoch_;
  }
  /// Returns whether this process uses it and another one that also has it may want to.
  [[nodiscard]] bool is_wanted_elsewhere() noexcept;
  [[nodiscard]] int domain() const { return domain_; }
  /// Returns the record shared by all processes that have it, null if no other process ever had it.
  [[nodiscard]] FamilyRecord* family() const noexcept { return family_.load(std::memory_order_acquire); }

  /// Makes this process the user, before it moves bytes or asks about the peer. Returns false when another process is
  /// the user.
  bool claim() noexcept;
  /// Reserves the connection, which this process may use, for a process that is about to be forked and calls
  /// claim_handed_on(). No other process can claim it meanwhile. Returns false when another process is the user.
  bool hand_on() noexcept;
  /// Undoes hand_on(), when the process was not made.
  void take_back() noexcept;
  bool claim_handed_on() noexcept;
  /// For a library whose processes can ask each other for a connection. The call is made by a process that has become
  /// the user of a connection that others also have, without locks, but possibly inside a read-side section. Set it
  /// before the first socket is made.
  using NewUserCall = void (*)(StreamSocket& connection) noexcept;
  static void have_user_asked(NewUserCall becomes_user);
  /// Returns whether this process can continue a connection that another process uses, after asking that process.
  [[nodiscard]] bool can_follow() const noexcept;
  std::atomic<bool> asked_in_vain{false};

 protected:
  /// Called by bind(2): no other socket gets the port while this one is connected.
  void hold_port() { holds_port_ = true; }
  /// Undoes listen(). As after a failed connect, any operation may be tried again.
  void stop_listening();
  /// Refuses waiting and new clients after shutdown(2) of a listener, until forget_listening().
  void refuse_clients();
  [[nodiscard]] bool refuses_clients();
  /// Returns the socket to its state before listen(2).
  void forget_listening();
  /// Returns whether accept() also takes clients from another source.
  [[nodiscard]] virtual bool has_other_listener() const noexcept { return false; }
  /// Makes this new socket the passive end of `event`'s connection. On errors the request is refused.
  Status become_accepted(verbs::CmEvent& event);
  /// Copies the options that an accepted socket inherits from its listener.
  void inherit_options(const StreamSocket& listener);
  /// Makes a connect by a ring fail after `patience`, because there is another way. Call it before connect().
  void have_other_way(Nanos patience) { patience_ = patience; }
  /// Leaves a bound socket that does not listen yet bound only on devices that survive fork(2). Returns false when
  /// there is none.
  bool leave_unshareable_devices();
  [[nodiscard]] bool is_connecting() const { return state() == State::connecting; }
  [[nodiscard]] bool has_failed_to_connect() const { return state() == State::failed; }
  /// Returns the error of a failed connect until it is reported.
  [[nodiscard]] int connect_error() const { return error_.load(std::memory_order_acquire); }
  [[nodiscard]] rs::Process& process() const { return process_; }

 private:
  enum class State : std::uint8_t { initial, bound, listening, connecting, connected, failed };
  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  /// Publishes the new state, in which the socket is complete.
  void set_state(State next) {
    state_.store(next, std::memory_order_release);
    describe();
  }

  // stream_socket.cc: under setup_lock_
  /// Updates the description for rsstat.
  void describe();
  [[nodiscard]] runtime::SocketPath path() const;

  /// Connects without waiting. Errors: EINPROGRESS and EALREADY while under way.
  Status connect_at_once(const sockaddr* address, socklen_t length);

  // connect.cc: all under setup_lock_
  Result<SocketAddress> usable_address(const sockaddr* address, socklen_t length) const;
  Status make_id_towards(const SocketAddress& destination);
  Status prepare_id(Result<std::unique_ptr<verbs::ConnectionId>> id);
  Status bind_locked(const SocketAddress& address);
  void take_number();
  Status start_connect(const SocketAddress& destination);
  void drive();
  /// Returns true when the connection manager's descriptor has changed, so that sleeping threads must arm anew.
  [[nodiscard]] bool drive_to_new_descriptor();
  void handle_cm_event(verbs::CmEvent& event);
  void send_connect_request();
  void finish_connect(const verbs::CmEvent& event);
  void fail_connect(int error);
  void set_connected();
  /// Takes events of an established connection. Returns true when something has changed for waiting threads.
  bool take_cm_events();
  bool take_cm_event(const verbs::CmEvent& event);
  /// Makes the service thread serve the connection manager, too, if the device needs that.
  void watch_cm_events();
  void serve_cm_events();  ///< on the service thread, without locks
  /// Drops the id and the connection of a failed connect.
  void drop_connection();
  /// Makes the service thread continue a direct write that waits for the peer's help, and the messages behind it,
  /// whenever the peer's doorbell rings, so that the application may sleep. Called without locks.
  void push_in_background();
  void serve_pushes();  ///< on the service thread, without locks
  [[nodiscard]] SocketAddress as_seen_here(const SocketAddress& address) const;

  // listen.cc
  void progress_listener();
  void take_in_clients(verbs::ConnectionId& from, std::size_t room);
  void note_admitted();
  void drop_those_taken_elsewhere();
  Result<int> give_out_client(SocketAddress& peer, int flags, std::unique_lock<Mutex>& guard);
  bool has_client();
  bool admit(verbs::CmEvent& event);
  void keep_half_open(runtime::Ref accepted);
  std::vector<runtime::Ref> take_clients();
  void drop_listening_id();
  void note_vain_accept();
  bool look_after_half_made();
  bool leave_half_made_to_others();
  bool waits_for_peer(StreamSocket& listener);
  [[nodiscard]] bool is_peer_decided() const;
  /// Called when a connection of half_open_ is established or never will be, on the service thread, without locks.
  void half_open_changed();
  Result<runtime::Ref> make_accepted(verbs::CmEvent& event);
  Status accept_request(verbs::CmEvent& event);
  void watch_listener();
  bool serve_unwatched();
  static void serve_unwatched_listeners();
  bool progress_in_background(std::atomic<bool>& waits_for_room);
  /// Stops all work for this socket on the service thread. Called without locks.
  void stop_background();
  void stop_serving();  ///< the same for the connection manager, whose events a closed connection still wants

  // inherited_listener.cc
  enum class Parts : std::uint8_t { ended, full, room };
  bool keep_shareable_parts() noexcept;
  void tell_that_child_listens() noexcept;
  std::vector<int> unshareable_descriptors();
  /// Serves the parts that no other process has: takes their clients, or ends the parts once another process listens.
  /// Called on the service thread, without locks.
  Parts serve_parts(bool take_in);
  void end_parts();
  std::vector<runtime::Ref> take_clients_of_parts();

  // transfer.cc
  template <class Receive>
  std::size_t take(Receive receive);
  Result<ssize_t> receive_into(IoCursor& out, std::size_t total, int flags);
  Result<ssize_t> discard(std::size_t length, int flags);
  Result<std::size_t> post_direct(const std::byte* data, std::size_t size, std::uint64_t offset);
  Result<ssize_t> send_from(IoCursor& data, std::size_t total);
  int take_error();
  /// The same for SO_ERROR, which consumes the error that the next read or write would report.
  int look_for_error();
  [[nodiscard]] bool at_end_of_stream() const {
    return read_shut_.load(std::memory_order_acquire) || connection_->peer_shut_down() ||
           connection_->peer_disconnected() || connection_->failure() != 0;
  }
  [[nodiscard]] bool at_end_of_sending() const {
    return write_shut_.load(std::memory_order_acquire) || connection_->peer_disconnected() ||
           connection_->failure() != 0;
  }
  /// Of a listener.
  [[nodiscard]] bool is_accepted_in_turns() const noexcept {
    return is_shared() || several_accept_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_half_open() const {
    return connection_->peer_disconnected() && connection_->failure() == 0 &&
           !write_shut_.load(std::memory_order_acquire);
  }
  /// Why a send fails at_end_of_sending(): another thread may have closed the descriptor meanwhile, which it says
  /// first.
  [[nodiscard]] Error end_of_sending(const char* where) const {
    return {closed_.load(std::memory_order_acquire) ? EBADF : EPIPE, where};
  }
  bool send_into_the_void();
  Result<ssize_t> send_nothing();
  [[nodiscard]] int failure_as_told() const;
  [[nodiscard]] bool waits_for_all(int flags) const;
  bool look_closely_if_read_seldom();
  bool is_time_for_close_look();
  void look_before_sending(std::unique_lock<BiasedMutex>& sending);
  /// Returns whether a send must look for the peer's end. send_lock_ must be held. The clock costs 10 ns.
  bool is_time_to_look() {
    constexpr unsigned kSendsPerLook = 8, kSendsPerClock = 4;
    ++sends_;
    return sends_ % kSendsPerLook == 0 || (sends_ % kSendsPerClock == 0 && has_not_looked_for_long());
  }
  [[nodiscard]] bool has_not_looked_for_long() const {
    constexpr std::uint64_t kLong = 1 << 21;  // half a millisecond to two
    return ticks() - looked_closely_at_.load(std::memory_order_relaxed) >= kLong;
  }
  void look_for_reset();
  [[nodiscard]] bool is_over() const;
  Status require_connected(int error_if_not);
  /// Polls completions and wakes sleeping threads.
  void progress();
  void ask_why_flushed();
  [[nodiscard]] bool has_enough() const noexcept;
  [[nodiscard]] bool has_peer_ended() const noexcept;
  std::uint32_t connected_events() noexcept;
  void disconnect();
  bool end_connection() noexcept;
  [[nodiscard]] bool leaves_bytes_unread() noexcept;
  [[nodiscard]] Error why_not(int flags) const;

  // inherited.cc. After a fork(2) a connection is suspended in both processes, and belongs to the one that uses it
  // first; the other one gets EIO, or asks that process (can_follow()). Called without setup_lock_, except those named
  // _locked and those of the end.
  bool claim_locked(pid_t user = 0) noexcept;
  bool become_user(FamilyRecord* family, pid_t& user) noexcept;
  /// For questions about the connection, which must not take it from another process that may want it.
  void look_if_alone() noexcept;
  void tell_loss(pid_t user) noexcept;
  void suspend() noexcept;
  void resume() noexcept;
  /// Called at the end of this process's use. Returns false when another process continues the connection, which must
  /// not be disturbed.
  bool leave_family() noexcept;
  void lose_half_made() noexcept;
  void let_go_silently() noexcept;
  void end_unseen() noexcept;

  // options.cc
  Status set_socket_level(int name, const void* value, socklen_t length, bool& handled);
  Status set_rdma_level(int name, const void* value, socklen_t length);
  Status get_rdma_level(int name, void* value, socklen_t* length);
  void update_low_mark();
  void option_changed(int level, int name);
  Status write_route(void* value, socklen_t* length) const;
  Status get_tcp_info(void* value, socklen_t* length);
  /// The reported segment size, which RDMA does not have: 1 << (7 + path MTU code 4), as reported by rdma-core on
  /// Ethernet.
  static constexpr int kSegmentBytes = 2048;

  // keepalive.cc
  void update_keepalive();  ///< under setup_lock_
  void stop_keepalive();
  void keepalive_tick();
  void remind_peer();  ///< under setup_lock_, of a connection that we have asked for

  static QueueSettings settings_from(const config::RsocketConfig& config);

  runtime::SocketStatistics statistics_;
  Process& process_;
  const int domain_;
  std::atomic<int> fd_;
  std::atomic<bool> connection_owns_fd_{false};  ///< fd_ is the connection's own descriptor
  bool has_own_number_ = false;  ///< from give_up_descriptor(): the application does not know the number
  bool holds_port_ = false;
  UniqueFd port_holder_;  ///< a kernel socket with a port that bind(2) chose, while connected
  UniqueFd left_number_;  ///< the number, when another process has the connection

  Mutex setup_lock_;
  std::atomic<State> state_{State::initial};
  SocketAddress destination_;
  std::optional<Nanos> patience_;
  std::atomic<Nanos> deadline_{Nanos::max()};
  /// connect() has returned EINPROGRESS. As in Linux, the first call after success returns 0, later ones EISCONN.
  bool owes_connect_answer_ = false;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<Connection> connection_;  ///< destroyed before id_
  std::unique_ptr<IoMap> iomap_;            ///< destroyed before connection_

  std::shared_ptr<CmWatch> cm_watch_;
  std::shared_ptr<CmWatch> push_watch_;      ///< while has_direct_under_way()
  UniqueFd push_fd_;                         ///< the descriptor that it watches
  std::uint32_t connect_stamp_ = 0;          ///< order_stamp() of connect(2); 0: accepted
  runtime::Ref half_open_listener_;          ///< the listener that waits for our peer's confirmation
  std::atomic<bool> peer_confirmed_{false};  ///< by the connection manager
  bool asked_why_flushed_ = false;

  // Listening
  ClientQueue accept_queue_;
  ClientQueue half_open_;  ///< answered and not confirmed; oldest first
  std::size_t backlog_ = 0;
  std::uint64_t listener_serial_ = 0;
  std::atomic<bool> several_accept_{false};  ///< several threads of this process have waited in accept() at once
  const char* last_in_vain_ = nullptr;       ///< own_thread_mark of the last accept() that found no client
  int changes_in_vain_ = 0;                  ///< how often it was another thread's
  /// The thread that also sleeps on requests that are under way (its own_thread_mark), or null. A hint: where it is
  /// wrong the service thread serves these requests.
  std::atomic<const char*> looks_after_half_made_{nullptr};
  /// A descriptor that is readable while id_ has work, for calls without the lock; -1 when it is not known.
  std::atomic<int> queue_fd_{-1};
  int listener_error_ = 0;                      ///< why the last client could not be taken
  std::atomic<std::uint64_t> accept_calls_{0};  ///< shows the service thread that the application calls accept()
  class ListenerWatch;
  std::shared_ptr<ListenerWatch> listener_watch_;

  BiasedMutex send_lock_;
  /// Counts sends: a sender that never reads would notice the peer's end only once the queue is full. Written by the
  /// sender.
  unsigned sends_ = 0;
  bool has_written_directly_ = false;  ///< riowrite(3); under send_lock_
  BiasedMutex receive_lock_;
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> write_shut_{false};
  std::atomic<bool> closed_{false};
  std::atomic<int> error_{0};                        ///< SO_ERROR
  std::atomic<bool> hung_up_{false};                 ///< the peer has been told of the connection's failure
  std::atomic<bool> failure_taken_{false};           ///< the connection's failure has been reported
  std::atomic<std::uint32_t> posted_when_told_{0};   ///< Connection::posted() when room was last reported as new
  std::atomic<bool> sent_into_the_void_{false};      ///< something was sent after the peer's end
  std::atomic<std::uint64_t> looked_closely_at_{0};  ///< in ticks()

  IntOptions options_;
  QueueSettings settings_;
  std::atomic<bool> linger_on_{false};
  std::atomic<int> linger_seconds_{0};
  std::vector<std::byte> route_;  ///< RDMA_ROUTE
  std::shared_ptr<Keepalive> keepalive_;
  std::shared_ptr<Keepalive> reminders_;

  // fork(2)
  std::atomic<bool> suspended_{false};
  std::uint32_t epoch_ = 0;   ///< FamilyRecord::epoch of the state here
  bool lost_ = false;         ///< this process has lost the connection
  bool half_made_ = false;    ///< in a child: another thread of the parent was working on it; also lost
  bool loss_told_ = false;    ///< the loss was logged
  bool watch_again_ = false;  ///< a listener that the service thread does not serve: since a fork, or there is none
  bool loss_known_ = false;   ///< the peer does not access this process's memory any more
  bool lacks_parts_ = false;  ///< a listener of which an ancestor had more parts
  std::shared_ptr<FamilyRecord> family_owner_;
  std::atomic<FamilyRecord*> family_{nullptr};  ///< null: never inherited, or not any more
};

}  // namespace ringsock::rs
