// A stream socket of an unmodified program: the kernel's socket, and at most one way beside it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/base/unique_fd.h"
#include "core/statistics/statistics.h"
#include "core/transports/mover.h"
#include "core/transports/way.h"

namespace ringsock::transports {

class ChosenSocket;

/// Makes the ways of one kind, and tells which addresses the rules leave to them. Never destroyed. Threads: any.
class WayMaker {
 public:
  /// Errors: std::bad_alloc.
  [[nodiscard]] virtual std::unique_ptr<Way> make_way(ChosenSocket& socket, int domain, int fd) const = 0;
  /// Returns what moves connections of this socket, or null where they are made by the way from the start.
  [[nodiscard]] virtual std::unique_ptr<Mover> make_mover(ChosenSocket& socket, Way& way) const = 0;
  /// Returns whether the rules permit the way for a connection to `address`, or a listener on it.
  [[nodiscard]] virtual bool permits(int domain, const SocketAddress& address) const = 0;

 protected:
  ~WayMaker() = default;
};

/// A kernel TCP socket that may turn into a way under the same descriptor number. connect() decides. When the rules and
/// the way permit the destination, the connection uses the way. Otherwise, and when that fails, the kernel socket is
/// connected, and the descriptor leaves the table for good. listen() opens both, and accept() takes clients from both.
///
/// With a mover a connection stays with the kernel until it is used.
///
/// Before the decision, bind() and options go to the kernel socket, so its answers are those of Linux. Options are
/// repeated for the way.
class ChosenSocket final : public runtime::Endpoint {
 public:
  /// @param fd  the kernel socket, which the caller enters into the table
  ChosenSocket(const WayMaker& maker, int domain, int fd);

  Status bind(const sockaddr* address, socklen_t length) override;
  Status listen(int backlog) override;
  Result<int> accept(SocketAddress& peer, int flags) override;
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;

  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags) override;
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override;
  void keep_error(int code) noexcept override { by_way_.transfer.keep_error(code); }
  Result<int> unread_bytes() override { return by_way_.transfer.unread_bytes(); }
  Result<int> unsent_bytes() override { return by_way_.transfer.unsent_bytes(); }

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  void look_for_end() noexcept override { by_way_.readiness.look_for_end(); }
  [[nodiscard]] bool asks_kernel() const noexcept override;
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override { return state() == State::both; }
  runtime::Listable* listable() noexcept override { return by_way_.readiness.listable(); }
  std::uint32_t arrival_stamp() noexcept override { return by_way_.readiness.arrival_stamp(); }
  [[nodiscard]] std::uint64_t taken_in_turns() const noexcept override { return by_way_.readiness.taken_in_turns(); }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override { return by_way_.readiness.waits_for_our_cpus(); }

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override { by_way_.descriptors.descriptor_closed(fd); }
  void descriptor_vanished(int fd) noexcept override { by_way_.descriptors.descriptor_vanished(fd); }
  Nanos linger() noexcept override { return by_way_.descriptors.linger(); }
  bool is_drained() noexcept override { return by_way_.descriptors.is_drained(); }
  bool owns_descriptor(int fd) const noexcept override { return by_way_.descriptors.owns_descriptor(fd); }
  void give_up_descriptor() noexcept override { by_way_.descriptors.give_up_descriptor(); }
  [[nodiscard]] bool is_kernels_too() const noexcept override { return is_kernel_socket(); }

  runtime::SocketStatistics* statistics() noexcept override { return way_->statistics(); }
  Way* way() noexcept override { return way_.get(); }
  ChosenSocket* as_chosen_socket() noexcept override { return this; }
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void before_fork() noexcept override { by_way_.process_life.before_fork(); }
  void after_fork(ForkSide side) noexcept override;
  void process_ends() noexcept override { by_way_.process_life.process_ends(); }
  void process_goes_on() noexcept override { by_way_.process_life.process_goes_on(); }

  /// Carries out F_SETFL. The kernel socket gets the flags, too, but a listener's stays non-blocking.
  void set_status_flags(int flags);
  /// Leaves a socket or listener that is on no way yet to the kernel for good. A connection on a way stays there. Not
  /// inside a read-side section.
  void give_up_way();
  /// Returns whether the descriptor still means the kernel socket.
  [[nodiscard]] bool is_kernel_socket() const { return state() != State::on_way; }
  [[nodiscard]] bool is_connecting_by_way() const { return state() == State::on_way && way_->is_connecting(); }
  /// Returns whether clients may come by the way.
  [[nodiscard]] bool listens_by_way() const { return state() == State::both; }
  /// Returns whether give_up_way() would have an effect: it listens, is not connected yet, or only by the kernel.
  [[nodiscard]] bool is_on_no_way_yet() const { return state() != State::on_way && state() != State::kernel; }

  // For the mover
  [[nodiscard]] bool is_moving() const { return state() == State::moving; }
  void begins_to_move() { set_state(State::moving); }
  void has_moved() { set_state(State::on_way); }
  void stays_with_kernel() { set_state(State::kernel); }

 private:
  enum class State : std::uint8_t {
    undecided,  ///< neither connected nor listening
    on_way,     ///< connecting or connected by the way
    both,       ///< listening by the way and by the kernel
    listener,   ///< with a mover: listening by the kernel only; its connections move to the way later
    moving,     ///< with a mover: connected by the kernel; moves to the way when it is used
    kernel,     ///< left to the kernel, which answers calls on this object, too
  };
  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  void set_state(State next) { state_.store(next, std::memory_order_release); }
  [[nodiscard]] int descriptor() const { return way_->descriptor(); }

  /// Returns why connecting cannot use the way, or nothing when it is to be tried.
  std::optional<runtime::KernelReason> reason_for_kernel(const sockaddr* address, socklen_t length);
  Status listen_by_way(int backlog);
  void stop_listening_by_way();
  Status connect_by_way(const sockaddr* address, socklen_t length);
  Status connect_by_kernel(const sockaddr* address, socklen_t length, runtime::KernelReason reason);
  Status connect_by_kernel_first(const sockaddr* address, socklen_t length);
  Result<int> accept_if_kernel_has_one(SocketAddress& peer, int flags);
  Result<int> accept_from_kernel(SocketAddress& peer, int flags);
  Result<int> take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags);
  [[nodiscard]] std::uint32_t kernel_events() const noexcept;
  void fall_back_if_refused() noexcept;
  void leave();
  void leave_ended_listener();

  const WayMaker& maker_;
  const int domain_;
  std::atomic<State> state_{State::undecided};
  std::atomic<bool> kernel_first_{false};  ///< whether accept() asks the kernel before the way next time
  SocketAddress destination_;
  std::unique_ptr<Mover> mover_;    ///< null: connections are made by the way
  const std::unique_ptr<Way> way_;  ///< its destructor takes the socket out of the registry of endpoints
  const runtime::Roles by_way_;
};

/// Sets O_NONBLOCK of a kernel socket.
void set_kernel_nonblocking(int fd, bool on);

}  // namespace ringsock::transports
