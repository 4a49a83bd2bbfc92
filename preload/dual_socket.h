// A TCP socket of an unmodified program.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/statistics/statistics.h"
#include "librsocket/stream_socket.h"
#include "preload/fork_mode.h"

namespace ringsock::preload {

/// A kernel TCP socket that may turn into an rsocket under the same descriptor number. connect() decides. When a device
/// finds an rsocket listener at the destination, the connection uses a ring. Otherwise, and when that fails, the kernel
/// socket is connected, and the descriptor leaves the table for good. listen() opens both ways, and accept() takes
/// clients from both.
///
/// In fork mode (fork_mode.h) a connection through a device whose connections do not survive fork(2) stays with the
/// kernel until one of its processes uses it.
///
/// Before the decision, bind() and options go to the kernel socket, so its answers are those of Linux. Options are
/// repeated for the ring.
class DualSocket final : public rs::StreamSocket {
 public:
  /// @param fd  the kernel socket, which the caller enters into the table
  DualSocket(rs::Process& process, int domain, int fd);

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

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override;
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override { return way() == Way::both; }
  Nanos deadline() noexcept override;
  void closed() noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;

  /// Carries out F_SETFL. The kernel socket gets the flags, too, but a listener's stays non-blocking.
  void set_status_flags(int flags);
  /// Leaves a socket or listener that is on no ring yet to the kernel for good. A connection on a ring stays there. Not
  /// inside a read-side section.
  void give_up_ring();
  [[nodiscard]] bool is_kernels_too() const noexcept override { return is_kernel_socket(); }
  /// Returns whether the descriptor still means the kernel socket.
  [[nodiscard]] bool is_kernel_socket() const { return way() != Way::ring; }
  [[nodiscard]] bool is_connecting_on_ring() const { return way() == Way::ring && is_connecting(); }
  /// Returns whether clients may come by a ring.
  [[nodiscard]] bool listens_on_ring() const { return way() == Way::both; }
  /// Returns whether give_up_ring() would have an effect: it listens, is not connected yet, or only by TCP in fork
  /// mode.
  [[nodiscard]] bool is_on_no_ring_yet() const { return way() != Way::ring && way() != Way::kernel; }

 private:
  enum class Way : std::uint8_t {
    undecided,  ///< neither connected nor listening
    ring,       ///< connecting or connected through a device
    both,       ///< listening on the ring and by the kernel
    listener,   ///< in fork mode: listening by the kernel only; its connections move to a ring later
    tcp,        ///< in fork mode: connected by the kernel; moves to a ring when it is used
    kernel,     ///< left to the kernel, which answers calls on this object, too
  };
  [[nodiscard]] Way way() const { return way_.load(std::memory_order_acquire); }

  [[nodiscard]] bool has_other_listener() const noexcept override { return way() == Way::both; }
  /// Returns why connecting cannot use a ring, or nothing when the ring is to be tried.
  std::optional<runtime::KernelReason> reason_for_kernel(const sockaddr* address, socklen_t length);
  Status listen_on_ring(int backlog);
  Status connect_on_ring(const sockaddr* address, socklen_t length);
  Status connect_by_kernel(const sockaddr* address, socklen_t length, runtime::KernelReason reason);
  Result<int> accept_if_kernel_has_one(SocketAddress& peer, int flags);
  Result<int> accept_from_kernel(SocketAddress& peer, int flags);
  [[nodiscard]] std::uint32_t kernel_events() const noexcept;
  void fall_back_if_refused() noexcept;
  void leave();
  void leave_ended_ring();

  // Fork mode (migration.cc). Functions of the second group need migration_lock_.
  /// Returns whether connections between this host and that address use a device that does not survive fork(2).
  bool moves_in_fork_mode(const SocketAddress& local_or_peer);
  void begin_migration(Migration::Step first, const SocketAddress& where);
  Status connect_in_fork_mode(const sockaddr* address, socklen_t length);
  Result<int> take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags);
  /// Tries to finish the move. Returns EAGAIN while it is under way.
  Status use_connection();
  template <class Before>
  Status move(Before before);
  [[nodiscard]] std::uint32_t moving_events() noexcept;
  [[nodiscard]] runtime::WaitFds arm_moving() noexcept;
  void forget_edges() noexcept;
  void end_migration() noexcept;

  Status move_locked();
  Status wait_for_zeros();
  Status wait_for_server();
  Status connect_ring();
  Status take_turn();
  Status listen_for_client();
  Status take_client();
  void arrive();
  Status stay(std::optional<Error> error);

  std::atomic<Way> way_{Way::undecided};
  std::atomic<bool> kernel_first_{false};  ///< whether accept() asks the kernel before the ring next time
  SocketAddress destination_;

  Mutex migration_lock_;  ///< taken before StreamSocket's locks
  std::unique_ptr<Migration> migration_;
  UniqueFd kernel_edges_;  ///< an epoll descriptor, readable when something happens to the kernel's connection
  std::atomic<Nanos> next_look_{Nanos::max()};
};

}  // namespace ringsock::preload
