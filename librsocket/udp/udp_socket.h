// A UDP socket of an unmodified program: the kernel's socket, with rings of the embedded device beside it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "core/base/biased_mutex.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/statistics/statistics.h"
#include "librsocket/udp/next_news.h"
#include "librsocket/udp/receive_turns.h"
#include "librsocket/udp/udp_intake.h"
#include "librsocket/udp/udp_outlets.h"

namespace ringsock::rs {

/// The descriptor is a kernel UDP socket, which owns the port, keeps the options and carries every datagram that no
/// ring carries. What rings cannot do ends them for this socket before it is done: senders find its door shut and use
/// the kernel, what waits in its rings is read first, and after that the descriptor leaves the table, so that all calls
/// are libc's (become_kernels()). Locks: send_lock_, then receive_lock_.
class UdpSocket final : public runtime::Endpoint {
 public:
  /// @param fd  the kernel socket, which the caller enters into the table
  UdpSocket(int domain, int fd);
  ~UdpSocket() override;

  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override;
  std::optional<Result<ssize_t>> receive_waiting(msghdr& message, int flags) override;
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  /// Unless another door may have got the descriptor of one that was shut.
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override {
    return !has_shut_a_door_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool asks_kernel() const noexcept override { return !has_rings_.load(std::memory_order_relaxed); }

  Status bind(const sockaddr* address, socklen_t length) override;
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  /// Calls that wait keep the kernel's socket under another number when the last descriptor is closed (Calls::keep()).
  [[nodiscard]] bool owns_descriptor(int fd) const noexcept override {
    return fd == this->fd() && !is_closed() && references.has_calls();
  }
  void give_up_descriptor() noexcept override;
  [[nodiscard]] bool is_kernels_too() const noexcept override { return true; }
  /// Also returns true when there is nothing to read that the kernel does not have, and false until then.
  bool become_kernels() noexcept override;

  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;
  void before_exec() noexcept override;
  void passed_on() noexcept override;

  runtime::SocketStatistics* statistics() noexcept override { return &statistics_; }

 private:
  [[nodiscard]] int fd() const { return fd_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_left_rings() const { return has_left_rings_.load(std::memory_order_acquire); }
  void leave_rings() noexcept;
  void leave_incoming_rings() noexcept;
  void end_rings_to_port();
  void unlock_and_tell(std::unique_lock<BiasedMutex>& guard);
  void describe();
  std::optional<Result<ssize_t>> receive_by_kernel(std::unique_lock<BiasedMutex>& guard, msghdr& message, int flags);

  const int domain_;
  std::atomic<int> fd_;
  UniqueFd kept_;  ///< from give_up_descriptor(): fd_; under both locks
  std::atomic<bool> has_left_rings_{false};
  std::atomic<bool> has_rings_{false};          ///< to receive from
  std::atomic<bool> has_shut_a_door_{false};    ///< and may open another one
  std::atomic<bool> shares_address_{false};     ///< SO_REUSEADDR
  std::atomic<bool> must_wait_to_send_{false};  ///< the kernel's send buffer was full
  BiasedMutex send_lock_;
  UdpOutlets outlets_;
  BiasedMutex receive_lock_;
  UdpIntake intake_;
  ReceiveTurns turns_{receive_lock_};
  runtime::SocketStatistics statistics_;
  NextNews news_;
};

}  // namespace ringsock::rs
