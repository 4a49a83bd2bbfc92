// Bytes and readiness of a TCP socket: the ring's, or the kernel's.
#include <linux/sockios.h>
#include <mellanox/vma_extra.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <mutex>
#include <optional>

#include "core/transports/kernel_calls.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace {

/// Leaves the socket to the kernel (preload/route.cc).
constexpr Error kNotConnected{EIO, "tcp: bytes behind a connect(2) that has failed"};
constexpr Error kTakenOverFirst{EINTR, "tcp: the connection is taken over first"};

Result<ssize_t> receive_from_kernel(int fd, msghdr& message, int flags) {
  const ssize_t got = ::recvmsg(fd, &message, flags | MSG_DONTWAIT);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

Result<ssize_t> send_by_kernel(int fd, const msghdr& message, int flags) {
  const ssize_t sent = ::sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return Error::last("sendmsg");
  return sent;
}

Result<int> ask_kernel(int fd, unsigned long request) {
  int bytes = 0;
  if (::ioctl(fd, request, &bytes) != 0) return Error::last("ioctl");
  return bytes;
}

/// Called by calls that move bytes behind a non-blocking connect(2) of `fd`. Returns what they fail with, nothing where
/// the kernel carries them out. A connection that is established is taken over, and the call is made again.
std::optional<Error> why_not_yet(int fd, TakeOver& take_over) {
  const std::uint8_t state = transports::tcp_state(fd);
  if (state == TCP_SYN_SENT || state == TCP_SYN_RECV) return std::nullopt;
  return state == TCP_ESTABLISHED && runtime::note_due(take_over) ? kTakenOverFirst : kNotConnected;
}

}  // namespace

bool TcpSocket::is_kernels_now() {
  const std::lock_guard guard(setup_lock_);
  return phase() != Phase::on_ring;
}

Result<ssize_t> TcpSocket::receive(msghdr& message, int flags) {
  if (phase() == Phase::on_ring) [[likely]] {
    if (is_closed()) return Error{EBADF, "recv: closed meanwhile"};
    auto got = stream_.receive(message, flags);
    if (got || got.error().code != EIO || !is_kernels_now()) [[likely]]
      return got;
  }
  if (phase() == Phase::connecting)
    if (const auto error = why_not_yet(fd(), take_over_)) return *error;
  return receive_from_kernel(fd(), message, flags);
}

Result<ssize_t> TcpSocket::send(const msghdr& message, int flags) {
  if ((flags & VMA_SND_FLAGS_DUMMY) != 0) [[unlikely]] {
    if (phase() != Phase::on_ring) return Error{EINVAL, "send: a dummy send by the kernel"};
    return stream_.rehearse(message, flags & ~VMA_SND_FLAGS_DUMMY);
  }
  if (phase() == Phase::on_ring) [[likely]] {
    if (is_closed()) return Error{EBADF, "send: closed meanwhile"};
    auto sent = stream_.send(message, flags);
    if (sent || sent.error().code != EIO || !is_kernels_now()) [[likely]]
      return sent;
  }
  if (phase() == Phase::connecting)
    if (const auto error = why_not_yet(fd(), take_over_)) return *error;
  return send_by_kernel(fd(), message, flags);
}

Result<int> TcpSocket::unread_bytes() {
  if (phase() == Phase::on_ring) {
    auto bytes = stream_.unread_bytes();
    if (bytes || !is_kernels_now()) return bytes;
  }
  return ask_kernel(fd(), FIONREAD);
}

Result<int> TcpSocket::unsent_bytes() {
  if (phase() == Phase::on_ring) {
    auto bytes = stream_.unacknowledged_bytes();
    if (bytes || !is_kernels_now()) return bytes;
  }
  return ask_kernel(fd(), SIOCOUTQ);
}

Result<int> TcpSocket::ask(unsigned long request) {
  if (phase() == Phase::on_ring) {
    auto answer = request == SIOCATMARK ? stream_.is_at_mark() : stream_.bytes_not_sent();
    if (answer || !is_kernels_now()) return answer;
  }
  return ask_kernel(fd(), request);
}

// -- waiting ---------------------------------------------------------------------------------------

std::uint32_t TcpSocket::ready() noexcept {
  if (phase() == Phase::on_ring) {
    if (const auto events = stream_.events(receive_low_mark())) return *events;
  }
  return moves_.unless_moving([this] { return transports::kernel_events(fd()); });
}

runtime::WaitFds TcpSocket::arm() noexcept {
  if (phase() != Phase::on_ring || !carried_.shared_ring()) return {{fd(), -1}};
  carried_.ring().arm();
  return {{carried_.ring().fd(), -1}};
}

void TcpSocket::woken() noexcept {
  if (phase() == Phase::on_ring && carried_.shared_ring()) {
    carried_.ring().woken();
  } else {
    note_activity();
  }
}

}  // namespace ringsock::vma
