// The calls of an application on a connection that a ring carries.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/tcp_settings.h"

namespace ringsock::vma {

/// Returns the bytes of all pieces.
inline std::size_t total(const msghdr& message) {
  std::size_t bytes = 0;
  for (const iovec& piece : std::span(message.msg_iov, message.msg_iovlen)) bytes += piece.iov_len;
  return bytes;
}

class TcpCallback;

/// Never sleeps. Threads: any. Functions that return a Result fail with EIO when the ring does not carry the connection
/// any more, or cannot do what is asked for: the call then begins anew at the kernel's socket (preload/route.cc).
class CarriedStream {
 public:
  explicit CarriedStream(CarriedConnection& connection) : connection_(connection) {}

  /// recvmsg(2). Errors: EAGAIN; the connection's; EINVAL no urgent byte (MSG_OOB).
  Result<ssize_t> receive(msghdr& message, int flags);
  /// The same for a connection whose program sees bytes first.
  Result<ssize_t> receive_shown(msghdr& message, int flags, TcpCallback& callback);
  /// Receives by `take(engine, now)`, which returns how many bytes it has taken. Errors: those of receive().
  template <class Take>
  Result<ssize_t> receive_by(Take take) {
    auto got = receive_once(true, take);
    if (got || got.error().code != EAGAIN) return got;
    connection_.progress();
    return receive_once(true, take);
  }
  /// sendmsg(2). Errors: EAGAIN the queue is full; EPIPE; the connection's.
  Result<ssize_t> send(const msghdr& message, int flags);
  /// VMA_SND_FLAGS_DUMMY, with the other flags: runs the path of a send, and nothing leaves. Returns the message's
  /// bytes. Errors: EAGAIN bytes wait, or it does not fit into one segment and the window; EPIPE; EINVAL other flags,
  /// control data, or the ring does not carry the connection any more.
  Result<ssize_t> rehearse(const msghdr& message, int flags);
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
  /// Has the call go back, outside the read-side section, and start again at the kernel's socket (preload/route.cc).
  static constexpr Error kLeave{EIO, "tcp: for the kernel"};

  /// One look at what the engine has. Errors: EAGAIN nothing yet; kLeave the connection moves.
  template <class Take>
  Result<ssize_t> receive_once(bool has_room, Take& take) {
    const auto answer = connection_.with_engine([&](engine::tcp::TcpConnection& engine, Nanos now) -> Result<ssize_t> {
      if (const std::size_t got = take(engine, now)) return static_cast<ssize_t>(got);
      if (engine.has_peers_end()) return 0;  // Linux: a reset that follows is told to the next send
      if (const int error = take_error_of(engine)) return Error{error, "recv"};
      if (engine.at_end()) return 0;
      if (!has_room && engine.readable() != 0)
        return 0;  // as in the kernel, such a call waits for bytes, and leaves them
      return Error{EAGAIN, "recv"};
    });
    return answer ? *answer : kLeave;
  }
  template <class Read>
  Result<ssize_t> receive_as(msghdr& message, int flags, Read read);
  Result<ssize_t> receive_urgent(const msghdr& message, int flags);
  Result<ssize_t> send_once(const msghdr& message, int flags);
  int take_error_of(engine::tcp::TcpConnection& engine);

  CarriedConnection& connection_;
  std::atomic<int> kept_error_{0};
};

}  // namespace ringsock::vma
