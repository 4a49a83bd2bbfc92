// connect(2) of a socket with a way.
#pragma once

#include <sys/socket.h>

#include <optional>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/statistics/statistics.h"

namespace ringsock::transports {

class ShortConnections;
class ChosenSocket;

/// Decides at connect(2): by the way where the rules and the way permit the destination, otherwise, and when the way
/// refuses, by the kernel.
class Connecting {
 public:
  explicit Connecting(ChosenSocket& socket) : socket_(socket) {}

  /// connect(2), in each state of the socket.
  Status connect(const sockaddr* address, socklen_t length);
  /// Connects by the kernel when a connect in the background has failed on the way. The caller may hold locks, so the
  /// descriptor stays in the table for now. Returns whether the kernel makes the connection.
  bool fall_back_if_refused() noexcept;
  /// Called when a connection that the way has made is closed.
  void note_end() noexcept;

 private:
  /// Returns why connecting cannot use the way, or nothing when it is to be tried.
  std::optional<runtime::KernelReason> reason_for_kernel(const sockaddr* address, socklen_t length);
  [[nodiscard]] ShortConnections* short_connections() const;
  [[nodiscard]] bool are_still_kernels() const noexcept;
  [[nodiscard]] bool is_short_and_kernels() const noexcept;
  Status by_way(const sockaddr* address, socklen_t length);
  Status by_kernel(const sockaddr* address, socklen_t length, runtime::KernelReason reason);
  Status by_kernel_first(const sockaddr* address, socklen_t length);

  ChosenSocket& socket_;
  SocketAddress destination_;
};

}  // namespace ringsock::transports
