// Bytes and readiness of a TCP socket: the ring's, or the kernel's.
#include <linux/sockios.h>
#include <mellanox/vma_extra.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <mutex>

#include "core/transports/kernel_calls.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

bool TcpSocket::is_kernels_now() {
  const std::lock_guard guard(setup_lock_);
  return phase() != Phase::on_ring;
}

Result<ssize_t> TcpSocket::receive(msghdr& message, int flags) {
  if (phase() == Phase::on_ring) [[likely]] {
    if (is_closed()) return Error{EBADF, "recv: closed meanwhile"};
    if (callback_.is_set()) [[unlikely]] {
      if (const int error = callback_.comes_first(flags)) return Error{error, "recv: the application's callback"};
    }
    auto got = callback_.is_set() ? stream_.receive_shown(message, flags, callback_) : stream_.receive(message, flags);
    if (got) [[likely]]
      take_over_.count(Exchange::Direction::received, *got);
    else if (got.error().code == EAGAIN)
      statistics_.count_receive_eagain();
    if (got || got.error().code != EIO || !is_kernels_now()) [[likely]]
      return got;
  }
  return take_over_.receive(message, flags);
}

Result<ssize_t> TcpSocket::send(const msghdr& message, int flags) {
  if ((flags & VMA_SND_FLAGS_DUMMY) != 0) [[unlikely]] {
    if (phase() != Phase::on_ring) return Error{EINVAL, "send: a dummy send by the kernel"};
    auto sent = stream_.rehearse(message, flags & ~VMA_SND_FLAGS_DUMMY);
    if (sent) statistics_.count_dummy();
    return sent;
  }
  if (phase() == Phase::on_ring) [[likely]] {
    if (is_closed()) return Error{EBADF, "send: closed meanwhile"};
    auto sent = stream_.send(message, flags);
    if (sent) [[likely]]
      take_over_.count(Exchange::Direction::sent, *sent);
    else if (sent.error().code == EAGAIN)
      statistics_.count_send_eagain();
    if (events_.is_polled()) [[unlikely]]
      events_.note_sent(sent, total(message));
    if (sent || sent.error().code != EIO || !is_kernels_now()) [[likely]]
      return sent;
  }
  return take_over_.send(message, flags);
}

Result<int> TcpSocket::unread_bytes() {
  if (phase() == Phase::on_ring) {
    auto bytes = stream_.unread_bytes();
    if (callback_.is_set() && callback_.look()) [[unlikely]]
      return Error{ERESTART, "FIONREAD: the application's callback"};
    if (bytes || !is_kernels_now()) return bytes;
  }
  const auto answer = take_over_.ask_kernel(FIONREAD);
  return answer ? *answer : unread_bytes();
}

Result<int> TcpSocket::unsent_bytes() {
  if (phase() == Phase::on_ring) {
    auto bytes = stream_.unacknowledged_bytes();
    if (bytes || !is_kernels_now()) return bytes;
  }
  const auto answer = take_over_.ask_kernel(SIOCOUTQ);
  return answer ? *answer : unsent_bytes();
}

Result<int> TcpSocket::ask(unsigned long request) {
  if (phase() == Phase::on_ring) {
    auto answer = request == SIOCATMARK ? stream_.is_at_mark() : stream_.bytes_not_sent();
    if (answer || !is_kernels_now()) return answer;
  }
  const auto answer = take_over_.ask_kernel(request);
  return answer ? *answer : ask(request);
}

// -- waiting ---------------------------------------------------------------------------------------

std::uint32_t TcpSocket::ready() noexcept {
  if (phase() == Phase::on_ring) {
    if (const auto events = stream_.events(receive_low_mark()))
      return callback_.is_set() ? callback_.without_hidden(*events) : *events;
  }
  return moves_.unless_moving([this] { return transports::kernel_events(fd()); });
}

runtime::WaitFds TcpSocket::arm() noexcept {
  if (phase() != Phase::on_ring || !carried_.shared_ring()) return {.fd = {fd(), -1}, .tells_of_room = true};
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
