// Receiving from rings and from the kernel's socket, and waiting for datagrams.
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "core/ethernet/bursts.h"
#include "core/poll/wait.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

// The functions on the path of each datagram are inlined into one.

[[gnu::always_inline]] inline ethernet::Ring::Look UdpSocket::poll_rings(ethernet::WaitingCall* waiting) noexcept {
  const auto found = rings_.poll(waiting);
  if (rings_.any() && flows_.are_stale()) [[unlikely]]
    follow_at_once(Change::addresses);
  return found;
}

Result<ssize_t> UdpSocket::receive(msghdr& message, int flags) {
  if (is_closed()) return Error{EBADF, "recvmsg: closed meanwhile"};
  ethernet::Bursts::note_receive();
  if (queue_.is_move_due()) [[unlikely]]
    follow_at_once(Change::place);
  if ((flags & (MSG_ERRQUEUE | MSG_OOB)) != 0) return receive_from_kernel(message, flags);
  if (!queue_.has_older() && (!rings_.any() || kernel_.is_due())) {
    auto from_kernel = receive_from_kernel(message, flags);
    if (!runtime::would_block(from_kernel)) return from_kernel;
  }
  if (!queue_.has_arrivals()) {
    WaitingReceive call{{.sink = &queue_}, message, flags};
    ethernet::WaitingCall* const waiting = (flags & MSG_PEEK) == 0 ? &call : nullptr;
    const ethernet::Ring::Look found = poll_rings(waiting);
    if (call.is_served) return call.answer;
    if (found != ethernet::Ring::Look::nothing && (is_nonblocking() || (flags & MSG_DONTWAIT) != 0)) [[unlikely]] {
      rings_.catch_up(waiting, queue_);
      if (call.is_served) return call.answer;
    }
  }
  if (queue_.has_arrivals()) {
    if (rings_.are_drained()) [[unlikely]]
      rings_.drain();
    return queue_.take(message, flags);
  }
  if (callback_.comes_first(flags)) [[unlikely]]
    return Error{ERESTART, "recvmsg: the application's callback"};
  if (is_nonblocking() || (flags & MSG_DONTWAIT) != 0) {
    statistics_.count(runtime::VmaSocketCount::rx_eagains);
  } else if (read_shut_.load(std::memory_order_relaxed)) [[unlikely]] {
    // Linux does not wait when reading has been shut down.
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    message.msg_flags = 0;
    return 0;
  }
  return Error{EAGAIN, "recvmsg"};
}

Result<ssize_t> UdpSocket::receive_from_kernel(msghdr& message, int flags) {
  inheritance_.look();
  const std::size_t control_room = message.msg_controllen;
  auto got = kernel_.receive(message, flags);
  if (got) queue_.correct_drops(message, control_room, flags);
  return got;
}

/// Polls the rings. Returns whether a datagram waits.
bool UdpSocket::progress() noexcept {
  if (!queue_.has_arrivals() && poll_rings(nullptr) == ethernet::Ring::Look::some) rings_.catch_up(nullptr, queue_);
  return queue_.has_arrivals();
}

/// Called by readers, which notice that addresses have changed before the service thread does, and who moves to other
/// rings after the thread or the CPU has changed.
void UdpSocket::follow_at_once(Change what) {
  const PolledRings::News news(rings_);
  const std::unique_lock guard(flows_.setup_lock(), std::try_to_lock);
  if (!guard) return;
  if (what == Change::addresses) {
    flows_.follow_addresses();
    describe();
    return;
  }
  queue_.move_here();
  if (flows_.move()) statistics_.count(runtime::VmaSocketCount::rx_migrations);
}

Result<int> UdpSocket::unread_bytes() {
  if (!progress()) rings_.catch_up(nullptr, queue_);
  if (const auto waiting = queue_.next_bytes()) return *waiting;
  if (callback_.look()) return Error{ERESTART, "FIONREAD: the application's callback"};
  int bytes = 0;
  if (::ioctl(kernel_.fd(), FIONREAD, &bytes) != 0) return Error::last("FIONREAD");
  return bytes;
}

// -- waiting ---------------------------------------------------------------------------------------

std::uint32_t UdpSocket::ready() noexcept {
  ethernet::Bursts::note_look();
  std::uint32_t events = EPOLLOUT | EPOLLWRNORM;
  if (queue_.whole().cyclic_waits() || progress() || queue_.whole().cyclic_waits()) {
    events |= EPOLLIN | EPOLLRDNORM;
  } else if (queue_.whole().has_unseen()) [[unlikely]] {
    static_cast<void>(callback_.look());
  }
  // A sender that must wait has nothing else to report than the kernel's error.
  const bool waits_for_pace = sender_.is_paced() && !sender_.pacer().may_send();
  if (!rings_.any() || kernel_.is_due() || waits_for_pace) {
    const std::uint32_t kernels = kernel_.events();
    events = (events & (EPOLLIN | EPOLLRDNORM)) | kernels;
    if ((kernels & EPOLLIN) != 0) events |= EPOLLRDNORM;
    if ((kernels & EPOLLOUT) != 0) events |= EPOLLWRNORM;
  }
  if (waits_for_pace) [[unlikely]]
    events &= ~static_cast<std::uint32_t>(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND);
  return events;
}

runtime::WaitFds UdpSocket::arm() noexcept {
  ethernet::Bursts::note_look();
  const std::lock_guard guard(flows_.setup_lock());
  inheritance_.return_when_alone();
  const runtime::WaitFds fds = rings_.arm();
  const bool is_armed = (rings_.any() || kernel_.is_full()) && !rings_.is_deaf();
  if (!is_armed) return fds;
  statistics_.count(runtime::VmaSocketCount::poll_misses);
  queue_.note_sleep();
  return fds;
}

/// A sleep without a bell is short, because nothing announces datagrams of rings. Nothing announces either that a paced
/// sender may go on.
Nanos UdpSocket::deadline() noexcept {
  constexpr Nanos kDeafSleep = std::chrono::milliseconds(10);
  const Nanos look = rings_.is_deaf() ? monotonic_now() + kDeafSleep : Nanos::max();
  return std::min(look, sender_.pacer().deadline());
}

void UdpSocket::woken() noexcept {
  if (kernel_.end_full()) [[unlikely]] {
    const std::lock_guard guard(flows_.setup_lock());
    rings_.stop_waiting_for_room();
  }
  kernel_.expect_datagram();
  rings_.woken();
  note_activity();
}

bool UdpSocket::asks_kernel() const noexcept { return !rings_.any(); }

bool UdpSocket::awaits_first() const noexcept { return statistics_.value(runtime::VmaSocketCount::rx_packets) == 0; }

}  // namespace ringsock::vma
