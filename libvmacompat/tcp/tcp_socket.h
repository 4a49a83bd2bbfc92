// A TCP socket of an unmodified program: the kernel's socket, whose established connection a ring may carry.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/carried_stream.h"
#include "libvmacompat/tcp/moves.h"
#include "libvmacompat/tcp/take_over.h"
#include "libvmacompat/tcp/tcp_api.h"
#include "libvmacompat/tcp/tcp_callback.h"
#include "libvmacompat/tcp/tcp_events.h"
#include "libvmacompat/tcp/tcp_lender.h"
#include "libvmacompat/tcp/tcp_statistics.h"

namespace ringsock::vma {

/// The kernel binds, listens, connects and shakes hands. Once the connection is established it is taken over: a ring
/// carries it from then on (CarriedConnection). Where connections have been short lately (ShortLives), the connection
/// stays with the kernel on trial, and is taken over once it has proved to last (TakeOver). Whatever a ring does not do
/// has the connection go back to the kernel, for good: the descriptors then leave the table. README.md has the rules.
class TcpSocket final : public runtime::Endpoint {
 public:
  /// @param fd  the kernel socket, which the caller puts into the table
  explicit TcpSocket(int fd);
  ~TcpSocket() override;

  /// How its connection gets to a ring.
  TakeOver& take_over() { return take_over_; }

  Status bind(const sockaddr* address, socklen_t length) override;
  Status listen(int backlog) override;
  Result<int> accept(SocketAddress& peer, int flags) override;
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;

  ApiSocket* as_api_socket() noexcept override { return phase() != Phase::kernels ? &api_ : nullptr; }

  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  void keep_error(int code) noexcept override { stream_.keep_error(code); }
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;
  std::size_t room_to_send() noexcept override { return phase() == Phase::on_ring ? stream_.room() : 0; }
  Result<int> ask(unsigned long request) override;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override { return phase() != Phase::on_ring; }

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  [[nodiscard]] bool is_kernels_too() const noexcept override { return phase() != Phase::on_ring; }
  bool become_kernels() noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;
  void before_exec() noexcept override { become_kernels(); }
  void passed_on() noexcept override { become_kernels(); }
  void process_ends() noexcept override;

  /// Called by the clock. Returns whether the application has used the connection since the last call.
  bool look(Nanos now);
  /// Waits while another thread moves the connection. Returns whether the kernel has it afterwards.
  bool is_kernels_now();
  [[nodiscard]] bool is_on_ring() const { return phase() == Phase::on_ring; }
  /// The kernel's socket; -1: closed.
  [[nodiscard]] int fd() const { return fd_.load(std::memory_order_relaxed); }

 private:
  friend class TakeOver;
  friend class TcpEvents;
  enum class Phase : std::uint8_t {
    beginning,   ///< not connected
    connecting,  ///< connect(2) is under way
    listening,   ///< by the kernel, and the ring's program is told of connections (VMA_SOCKETXTREME)
    on_trial,    ///< established; the kernel carries it until it has proved to last
    on_ring,
    kernels,  ///< for good
  };
  [[nodiscard]] Phase phase() const { return phase_.load(std::memory_order_acquire); }

  void leave();
  bool give_back() noexcept;

  std::atomic<int> fd_;
  std::atomic<Phase> phase_{Phase::beginning};
  Mutex setup_lock_;  ///< held while the connection moves, and around calls that move bytes on trial
  Moves moves_;
  TakeOver take_over_{*this};
  std::atomic<bool> has_kernels_option_{false};
  std::atomic<bool> connect_is_open_{false};  ///< connect(2) has not told yet that it has succeeded
  TcpEvents events_;
  CarriedConnection carried_;
  CarriedStream stream_;
  TcpStatistics statistics_;
  TcpLender lender_;
  TcpCallback callback_;
  TcpApi api_;
  std::atomic<std::uint64_t> seen_polls_{0};
};

}  // namespace ringsock::vma
