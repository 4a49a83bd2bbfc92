// A stream rsocket: what rsocket(…, SOCK_STREAM, …) makes.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/config/rsocket_config.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/statistics.h"
#include "core/verbs/connection_manager.h"
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
/// connected socket stays `connected` until its end; that the peer has gone is the Connection's to know.
///
/// Locks, in the order in which they may nest: setup_lock_ (states, connection manager, options), send_lock_ (one
/// sender), receive_lock_ (one reader); the Connection's completion lock is innermost. notify_watchers() is called
/// without any.
///
/// connection_ is set before the state becomes `connected` and stays until the destructor, so whoever has seen that
/// state (acquire) may use it without a lock.
class StreamSocket : public runtime::Endpoint {
 public:
  /// @param domain  AF_INET or AF_INET6
  /// @param fd      the descriptor it will be known by: a kernel TCP socket that holds the port, owned by the caller
  StreamSocket(Process& process, int domain, int fd);
  ~StreamSocket() override;

  Status bind(const sockaddr* address, socklen_t length) override;
  Status listen(int backlog) override;
  Result<int> accept(SocketAddress& peer, int flags) override;
  /// The same without looking for more clients than have been answered already. EAGAIN: there is none.
  Result<int> accept_waiting(SocketAddress& peer, int flags);
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  /// The same also when both directions have ended.
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
  runtime::WaitFds arm() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override { return state() == State::listening; }
  [[nodiscard]] std::uint64_t taken_in_turns() const noexcept override {
    return state() == State::listening && is_shared() ? listener_serial_ : 0;
  }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override {
    return is_connected() && connection_->works_on_our_cpus();
  }
  void woken() noexcept override;
  Nanos deadline() noexcept override { return deadline_.load(std::memory_order_relaxed); }
  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  void give_up_descriptor() noexcept override;
  /// A connection that another process carries on: from now on its descriptors mean `kernel_socket`, also in epoll
  /// sets. The caller keeps that one. Not inside a read-side section.
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
  /// The process that has last said of a descriptor that it is to be kept over exec(2), or has made one that is: after
  /// fork(2) that is a child's word for its next program, where a descriptor that just is not closed may be a leak.
  std::atomic<pid_t> keeper{0};

  // Direct placement (riomap(3) and so on).
  Result<off_t> map_buffer(void* data, std::size_t length, int prot, off_t offset);
  Status unmap_buffer(void* data, std::size_t length);
  /// One attempt at [offset, offset + size): bytes written, 0 when nothing is mapped there. EAGAIN: the queue is full.
  Result<std::size_t> write_direct(const std::byte* data, std::size_t size, std::uint64_t offset);

  /// The number it is known by; another one after that was closed while a duplicate lives.
  [[nodiscard]] int descriptor() const { return fd_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_connected() const { return state() == State::connected; }
  /// Whether other processes have it open, as far as is known: never no when they have.
  [[nodiscard]] bool is_shared() const noexcept;
  /// Since a fork it is another process's: EIO here.
  [[nodiscard]] bool is_used_elsewhere() const noexcept;
  /// Another process has used it since the fork, so that what is known here is out of date.
  [[nodiscard]] bool has_old_state() const noexcept {
    const FamilyRecord* const record = family();
    return record != nullptr && record->epoch.load() != epoch_;
  }
  /// This process uses it, and another one that has it, too, may want to.
  [[nodiscard]] bool is_wanted_elsewhere() noexcept;
  /// What all processes know that have it; null: no other process ever had.
  [[nodiscard]] FamilyRecord* family() const noexcept { return family_.load(std::memory_order_acquire); }

  /// Before anything that moves bytes or looks at the peer. False: it is another process's.
  bool claim() noexcept;
  /// The connection, which this process may use, is to be carried on by a process that is about to be forked: that one
  /// calls claim_handed_on(). Nobody else can claim it meanwhile. False: it is another process's.
  bool hand_on() noexcept;
  /// That process has not come to be.
  void take_back() noexcept;
  bool claim_handed_on() noexcept;
  /// Of a library whose processes can ask each other for a connection: called, without locks, but maybe inside a
  /// read-side section, by a process that has become the user of one that others have, too. Before the first socket.
  using NewUserCall = void (*)(StreamSocket& connection) noexcept;
  static void have_user_asked(NewUserCall becomes_user);
  /// Whether this process can go on with a connection that another one uses, once that one was asked.
  [[nodiscard]] bool can_follow() const noexcept;
  std::atomic<bool> asked_in_vain{false};

 protected:
  /// Undoes listen(): as after a connect that failed, everything may be tried again.
  void stop_listening();
  /// After shutdown(2) of a listener: who waits to be accepted is refused, and who comes. Until forget_listening().
  void refuse_clients();
  [[nodiscard]] bool refuses_clients();
  /// The socket is as before listen(2).
  void forget_listening();
  /// Whether accept() takes clients from elsewhere, too.
  [[nodiscard]] virtual bool has_other_listener() const noexcept { return false; }
  /// This socket, which is new, is the passive end of `event`'s connection. Errors: the request is refused.
  Status become_accepted(verbs::CmEvent& event);
  /// What an accepted socket has from its listener.
  void inherit_options(const StreamSocket& listener);
  /// Before connect(): what takes longer by a ring fails, since there is another way.
  void have_other_way(Nanos patience) { patience_ = patience; }
  /// Bound, and not listening yet: stays so only on devices that survive fork(2). False: there is none.
  bool leave_unshareable_devices();
  [[nodiscard]] bool is_connecting() const { return state() == State::connecting; }
  [[nodiscard]] bool has_failed_to_connect() const { return state() == State::failed; }
  /// Why, until it is told.
  [[nodiscard]] int connect_error() const { return error_.load(std::memory_order_acquire); }
  [[nodiscard]] rs::Process& process() const { return process_; }
  [[nodiscard]] int domain() const { return domain_; }

 private:
  enum class State : std::uint8_t { initial, bound, listening, connecting, connected, failed };
  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  /// The socket is complete in its new state: others may see it.
  void set_state(State next) {
    state_.store(next, std::memory_order_release);
    describe();
  }

  // stream_socket.cc: under setup_lock_
  /// Tells rsstat what the socket is now.
  void describe();
  [[nodiscard]] runtime::SocketPath path() const;

  /// Without waiting for anybody. EINPROGRESS, EALREADY: under way.
  Status connect_at_once(const sockaddr* address, socklen_t length);

  // connect.cc: all under setup_lock_
  Result<SocketAddress> usable_address(const sockaddr* address, socklen_t length) const;
  Status make_id_towards(const SocketAddress& destination);
  Status prepare_id(Result<std::unique_ptr<verbs::ConnectionId>> id);
  Status bind_locked(const SocketAddress& address);
  Status start_connect(const SocketAddress& destination);
  void drive();
  /// True: the connection manager's descriptor is another one now, and whoever sleeps must arm anew.
  [[nodiscard]] bool drive_to_new_descriptor();
  void handle_cm_event(verbs::CmEvent& event);
  void send_connect_request();
  void finish_connect(const verbs::CmEvent& event);
  void fail_connect(int error);
  void set_connected();
  /// Of a connection that is made. True when something has changed for those who wait.
  bool take_cm_events();
  bool take_cm_event(const verbs::CmEvent& event);
  /// From now on the service thread looks after the connection manager too, if the device needs that.
  void watch_cm_events();
  void serve_cm_events();  ///< on the service thread, without locks
  /// The id, and the connection, of a connect that failed.
  void drop_connection();
  /// Without locks. Where a direct write waits for the peer's help, the application may sleep from now on: the service
  /// thread goes on with it, and with what is sent behind it, whenever the peer's doorbell rings.
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
  bool waits_for_peer(StreamSocket& listener);
  [[nodiscard]] bool is_peer_decided() const;
  /// One of half_open_ is established, or never will be. Without locks, on the service thread.
  void half_open_changed();
  Result<runtime::Ref> make_accepted(verbs::CmEvent& event);
  Status accept_request(verbs::CmEvent& event);
  void watch_listener();
  bool serve_unwatched();
  static void serve_unwatched_listeners();
  bool progress_in_background(std::atomic<bool>& waits_for_room);
  /// Without locks: nothing of this socket runs on the service thread any more.
  void stop_background();
  void stop_serving();  ///< the same for the connection manager, whose events a closed connection still wants

  // inherited_listener.cc
  enum class Parts : std::uint8_t { ended, full, room };
  bool keep_shareable_parts() noexcept;
  void tell_that_child_listens() noexcept;
  std::vector<int> unshareable_descriptors();
  /// Of the parts that no other process has: takes in their clients, or ends them once another process listens. On the
  /// service thread, without locks.
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
  /// The same for SO_ERROR, which takes it from whoever reads or writes next.
  int look_for_error();
  [[nodiscard]] bool at_end_of_stream() const {
    return read_shut_.load(std::memory_order_acquire) || connection_->peer_shut_down() ||
           connection_->peer_disconnected() || connection_->failure() != 0;
  }
  [[nodiscard]] bool at_end_of_sending() const {
    return write_shut_.load(std::memory_order_acquire) || connection_->peer_disconnected() ||
           connection_->failure() != 0;
  }
  [[nodiscard]] bool is_half_open() const {
    return connection_->peer_disconnected() && connection_->failure() == 0 &&
           !write_shut_.load(std::memory_order_acquire);
  }
  bool send_into_the_void();
  Result<ssize_t> send_nothing();
  [[nodiscard]] int failure_as_told() const;
  bool look_closely_if_read_seldom();
  bool is_time_for_close_look();
  void look_while_sending(unsigned sends);
  void look_for_reset();
  [[nodiscard]] bool is_over() const;
  Status require_connected(int error_if_not);
  /// Polls completions and tells whoever sleeps.
  void progress();
  void ask_why_flushed();
  std::uint32_t connected_events() noexcept;
  void disconnect();
  bool end_connection() noexcept;
  [[nodiscard]] bool leaves_bytes_unread() noexcept;

  // inherited.cc. After a fork(2) a connection is suspended in both processes, and belongs to the one that uses it
  // first; the other one gets EIO, or asks it (can_follow()). Without setup_lock_, but for those named _locked and
  // those of the end.
  bool claim_locked(pid_t user = 0) noexcept;
  bool become_user(FamilyRecord* family, pid_t& user) noexcept;
  /// For questions about the connection, which do not take it from another process that may want it.
  void look_if_alone() noexcept;
  void tell_loss(pid_t user) noexcept;
  void suspend() noexcept;
  void resume() noexcept;
  /// At the end of this process's use. False: the connection goes on without us, and must not notice that we left.
  bool leave_family() noexcept;
  void lose_half_made() noexcept;
  void let_go_silently() noexcept;
  void end_unseen() noexcept;

  // options.cc
  Status set_socket_level(int name, const void* value, socklen_t length, bool& handled);
  Status set_rdma_level(int name, const void* value, socklen_t length);
  Status get_rdma_level(int name, void* value, socklen_t* length);
  void option_changed(int level, int name);
  Status write_route(void* value, socklen_t* length) const;
  Status get_tcp_info(void* value, socklen_t* length);
  /// The largest segment that is told; RDMA has none. 1 << (7 + path MTU code 4), as rdma-core says on Ethernet.
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
  bool has_own_number_ = false;                  ///< of give_up_descriptor(): the application knows it not
  UniqueFd left_number_;                         ///< that, when another process has the connection

  Mutex setup_lock_;
  std::atomic<State> state_{State::initial};
  SocketAddress destination_;
  std::optional<Nanos> patience_;
  std::atomic<Nanos> deadline_{Nanos::max()};
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<Connection> connection_;  ///< destroyed before id_
  std::unique_ptr<IoMap> iomap_;            ///< destroyed before connection_

  std::shared_ptr<CmWatch> cm_watch_;
  std::shared_ptr<CmWatch> push_watch_;      ///< while has_direct_under_way()
  UniqueFd push_fd_;                         ///< what it watches
  runtime::Ref half_open_listener_;          ///< who waits for our peer's confirmation
  std::atomic<bool> peer_confirmed_{false};  ///< by the connection manager
  bool asked_why_flushed_ = false;

  // Listening
  std::deque<runtime::Ref> accept_queue_;
  std::deque<runtime::Ref> half_open_;  ///< have been answered, and not confirmed; oldest first
  std::size_t backlog_ = 0;
  std::uint64_t listener_serial_ = 0;
  int listener_error_ = 0;                      ///< why no client could be taken in last time
  std::atomic<std::uint64_t> accept_calls_{0};  ///< tells the service thread that the application accepts by itself
  class ListenerWatch;
  std::shared_ptr<ListenerWatch> listener_watch_;

  BiasedMutex send_lock_;
  /// A sender that never reads would hear of the peer's end only once the queue is full. The sender's.
  static constexpr unsigned kSendsPerLook = 8;
  unsigned sends_ = 0;
  bool has_written_directly_ = false;  ///< riowrite(3); under send_lock_
  BiasedMutex receive_lock_;
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> write_shut_{false};
  std::atomic<bool> closed_{false};
  std::atomic<int> error_{0};                        ///< SO_ERROR
  std::atomic<bool> hung_up_{false};                 ///< the peer has been told of the connection's failure
  std::atomic<bool> failure_taken_{false};           ///< the connection's failure has been reported
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
  bool lost_ = false;         ///< nothing of the connection is ours any more
  bool half_made_ = false;    ///< in a child: another thread of the parent was at work on it; lost, too
  bool loss_told_ = false;    ///< in the log
  bool watch_again_ = false;  ///< a listener without the service thread: since a fork, or there is none
  bool loss_known_ = false;   ///< the peer does not access this process's memory any more
  bool lacks_parts_ = false;  ///< a listener of which an ancestor had more
  std::shared_ptr<FamilyRecord> family_owner_;
  std::atomic<FamilyRecord*> family_{nullptr};  ///< null: never inherited, or not any more
};

}  // namespace ringsock::rs
