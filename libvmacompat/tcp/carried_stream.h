// The calls of an application on a connection that a ring carries.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/base/result.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/tcp_settings.h"

namespace ringsock::vma {

/// Never sleeps. Threads: any. Functions that return a Result fail with EIO when the ring does not carry the connection
/// any more, or cannot do what is asked for: the call then begins anew at the kernel's socket (preload/route.cc).
class CarriedStream {
 public:
  explicit CarriedStream(CarriedConnection& connection) : connection_(connection) {}

  /// recvmsg(2). Errors: EAGAIN; the connection's; EINVAL no urgent byte (MSG_OOB).
  Result<ssize_t> receive(msghdr& message, int flags);
  /// sendmsg(2). Errors: EAGAIN the queue is full; EPIPE; the connection's.
  Result<ssize_t> send(const msghdr& message, int flags);
  [[nodiscard]] Result<int> unread_bytes();
  /// SIOCATMARK: 1 when the next byte to read is the urgent one.
  [[nodiscard]] Result<int> is_at_mark();
  /// SIOCOUTQNSD: bytes that have not left.
  [[nodiscard]] Result<int> bytes_not_sent();
  /// SIOCOUTQ: bytes that the peer has not acknowledged.
  [[nodiscard]] Result<int> unacknowledged_bytes();
  /// Returns how many bytes send() takes now.
  [[nodiscard]] std::size_t room() noexcept;
  /// Returns the EPOLL* conditions that hold now, nothing when the ring does not carry the connection any more.
  std::optional<std::uint32_t> events(std::size_t low_mark) noexcept;
  [[nodiscard]] bool is_over();

  /// Keeps an error for the next call.
  void keep_error(int code) noexcept;
  /// SO_ERROR. Returns nothing when the ring does not carry the connection any more.
  std::optional<int> take_error();
  /// TCP_MAXSEG
  std::optional<int> segment_bytes();
  /// TCP_INFO of the kernel socket `fd`, with what the engine knows. Errors: those of getsockopt(2).
  Status info(int fd, void* value, socklen_t* length);
  /// Has an option that the kernel's socket has accepted take effect.
  void apply(TcpOptionEffect effect, int fd, int name);

 private:
  Result<ssize_t> receive_once(msghdr& message, int flags);
  Result<ssize_t> receive_urgent(const msghdr& message, int flags);
  Result<ssize_t> send_once(const msghdr& message, int flags);
  int take_error_of(engine::tcp::TcpConnection& engine);

  CarriedConnection& connection_;
  std::atomic<int> kept_error_{0};
};

}  // namespace ringsock::vma
