// A TCP socket of an unmodified program.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/statistics/statistics.h"
#include "librsocket/stream_socket.h"
#include "preload/fork_mode.h"

namespace ringsock::preload {

/// A kernel TCP socket that may turn into an rsocket under the same descriptor number. connect() decides: where a
/// device finds a listener of ours, the connection goes through a ring; else, and also when that fails, the kernel
/// socket is connected, and the descriptor leaves the table for good. listen() opens both ways, and accept() takes
/// clients from both.
///
/// In fork mode (fork_mode.h) a connection that would go through a device whose connections do not survive fork(2) is
/// the kernel's until one of its processes uses it.
///
/// Until it is decided, binding and options go to the kernel socket, which thus answers as without us; options are
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

  /// F_SETFL: the kernel socket follows, but for a listener's, which must never block.
  void set_status_flags(int flags);
  /// What is on no ring yet becomes the kernel's for good, a listener too; connections stay. Not inside a read-side
  /// section.
  void give_up_ring();
  [[nodiscard]] bool is_kernels_too() const noexcept override { return is_kernel_socket(); }
  /// Whether the kernel socket still is what the descriptor means.
  [[nodiscard]] bool is_kernel_socket() const { return way() != Way::ring; }
  [[nodiscard]] bool is_connecting_on_ring() const { return way() == Way::ring && is_connecting(); }
  /// Clients may come by rings, too.
  [[nodiscard]] bool listens_on_ring() const { return way() == Way::both; }
  /// Listens, or has not been connected: give_up_ring() makes it the kernel's.
  [[nodiscard]] bool is_on_no_ring_yet() const { return way() != Way::ring && way() != Way::kernel; }

 private:
  enum class Way : std::uint8_t {
    undecided,  ///< neither connected nor listening
    ring,       ///< connecting or connected through a device
    both,       ///< listening
    listener,   ///< listening by the kernel only, in fork mode: its connections move
    tcp,        ///< in fork mode: connected by the kernel, and moves to a ring when it is used
    kernel,     ///< left to the kernel; those who still hold this object are answered by it
  };
  [[nodiscard]] Way way() const { return way_.load(std::memory_order_acquire); }

  /// Why the ring is out of the question for connecting there; empty when it is worth a try.
  [[nodiscard]] bool has_other_listener() const noexcept override { return way() == Way::both; }
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

  // migration.cc: fork mode. The functions of the second group under migration_lock_.
  /// Whether connections between this host and there go through a device that does not survive fork(2).
  bool moves_in_fork_mode(const SocketAddress& local_or_peer);
  void begin_migration(Migration::Step first, const SocketAddress& where);
  Status connect_in_fork_mode(const sockaddr* address, socklen_t length);
  Result<int> take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags);
  /// An attempt to have the connection where it belongs. EAGAIN: not yet.
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
  std::atomic<bool> kernel_first_{false};  ///< whose client accept() takes next when both have one
  SocketAddress destination_;

  Mutex migration_lock_;  ///< before StreamSocket's
  std::unique_ptr<Migration> migration_;
  UniqueFd kernel_edges_;  ///< readable when something happens to the kernel's connection: an epoll descriptor
  std::atomic<Nanos> next_look_{Nanos::max()};
};

}  // namespace ringsock::preload
