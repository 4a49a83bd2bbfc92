// How the connection of a TCP socket gets to a ring: at once, or when it has proved to last.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <optional>

#include "core/base/socket_address.h"
#include "core/config/vma_line.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/tcp/short_lives.h"

namespace ringsock::transports {
class KeptOptions;
}  // namespace ringsock::transports

namespace ringsock::vma {

class CarriedConnection;
class TcpSocket;

/// Has a ring carry the connection of the kernel socket `fd` that accept4(2) with `flags` has made, and enters it into
/// the table. Returns false when the kernel keeps it.
/// @param listener  whose choice of rings it has; null: one of its own
bool take_accepted(int fd, int flags, const CarriedConnection* listener);

/// The same for a kernel socket that another way has left to the kernel, and whose connect(2) to this address stands,
/// or is under way. `options` were set before. The kernel keeps it where that is not possible.
void take_connecting(int fd, const sockaddr* address, socklen_t length, bool stands,
                     const transports::KeptOptions& options);

/// Until a connection is on the ring, and what is learnt of its life. A call that finds it established, or that it has
/// proved to last, holds a read-side section: the connection is taken over where that call ends. Threads: any.
class TakeOver final : public DueCall {
 public:
  explicit TakeOver(TcpSocket& socket) : socket_(socket) {}

  /// The kernel's connect(2) to `peer` stands, or is under way.
  void begin_connecting(const SocketAddress& peer, bool stands);
  /// The same where another way has called it, on a socket on which `options` were set.
  void take_connecting(const SocketAddress& peer, bool stands, const transports::KeptOptions& options);
  /// accept4(2) has made the kernel socket. Returns false when the kernel keeps the connection.
  bool accepted(const CarriedConnection* listener);
  /// Called where the application asks how a connect has ended. Not inside a read-side section.
  void if_connected();

  // Bytes while the kernel carries the connection. Once it has moved, the call is as on the ring. Errors: those of
  // recvmsg(2) and sendmsg(2) that do not wait; EINTR the connection moves first; EIO behind a connect(2) that has
  // failed, which leaves the socket to the kernel (preload/route.cc).
  Result<ssize_t> receive(msghdr& message, int flags);
  Result<ssize_t> send(const msghdr& message, int flags);

  /// Returns what ioctl(2) says of the bytes of the kernel's socket, nothing when a ring has the connection by now.
  std::optional<Result<int>> ask_kernel(unsigned long request);

  /// A call has moved `bytes`. Returns whether the connection has proved to last.
  bool count(Exchange::Direction direction, ssize_t bytes);
  /// The connection ends, or goes back to the kernel.
  void note_end_of_life();

  // -- DueCall
  void run() override;
  runtime::Endpoint& endpoint() noexcept override;

 private:
  bool begin(config::VmaRole role);
  bool move();
  void end_trial();
  std::optional<Error> why_not_yet();
  Result<ssize_t> after_receive(Result<ssize_t> got, int flags);
  void after_send(const Result<ssize_t>& sent, std::size_t wanted);

  TcpSocket& socket_;
  config::VmaRole role_{};       ///< since the connection is established
  ShortLives::Place place_ = 0;  ///< the same
  Exchange exchange_;
  std::atomic<bool> has_lasted_{false};  ///< the exchange is not counted any more
};

}  // namespace ringsock::vma
