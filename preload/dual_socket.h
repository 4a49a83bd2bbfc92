// A TCP socket of an unmodified program.
#pragma once

#include <atomic>
#include <optional>

#include "core/runtime/statistics.h"
#include "librsocket/stream_socket.h"

namespace ringsock::preload {

/// A kernel TCP socket that may turn into an rsocket under the same descriptor number. connect() decides: where a
/// device finds a listener of ours, the connection goes through a ring; else, and also when that fails, the kernel
/// socket is connected, and the descriptor leaves the table for good. listen() opens both ways, and accept() takes
/// clients from both.
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

  /// F_SETFL: the kernel socket follows, but for a listener's, which must never block.
  void set_status_flags(int flags);
  /// What is on no ring yet becomes the kernel's for good, a listener too; connections stay. Not inside a read-side
  /// section.
  void give_up_ring();
  /// Whether the kernel socket still is what the descriptor means.
  [[nodiscard]] bool is_kernel_socket() const { return way() != Way::ring; }

 private:
  enum class Way : std::uint8_t {
    undecided,  ///< neither connected nor listening
    ring,       ///< connecting or connected through a device
    both,       ///< listening
    kernel,     ///< left to the kernel; those who still hold this object are answered by it
  };
  [[nodiscard]] Way way() const { return way_.load(std::memory_order_acquire); }

  /// Why the ring is out of the question for connecting there; empty when it is worth a try.
  [[nodiscard]] bool has_other_listener() const noexcept override { return way() == Way::both; }
  std::optional<runtime::KernelReason> reason_for_kernel(const sockaddr* address, socklen_t length);
  Status listen_on_ring(int backlog);
  Status connect_by_kernel(const sockaddr* address, socklen_t length, runtime::KernelReason reason);
  Result<int> accept_from_kernel(SocketAddress& peer, int flags);
  [[nodiscard]] std::uint32_t kernel_events() const noexcept;
  void fall_back_if_refused() noexcept;
  void leave();

  std::atomic<Way> way_{Way::undecided};
  std::atomic<bool> kernel_first_{false};  ///< whose client accept() takes next when both have one
  SocketAddress destination_;
};

}  // namespace ringsock::preload
