// Receiving from rings and from the kernel's socket, and waiting for datagrams.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/base/thread_id.h"
#include "core/ethernet/bursts.h"
#include "core/poll/wait.h"
#include "libvmacompat/socket_options.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;
/// What a waiting datagram counts beside its payload, because empty datagrams take memory, too.
constexpr std::size_t kBytesBesidePayload = 64;

/// Returns the number of bytes copied.
[[gnu::always_inline]] inline std::size_t copy(std::span<const std::byte> payload, const iovec& part) {
  const std::size_t bytes = std::min(payload.size(), part.iov_len);
  if (bytes != 0) std::memcpy(part.iov_base, payload.data(), bytes);
  return bytes;
}
[[gnu::noinline]] std::size_t copy_to_parts(std::span<const std::byte> payload, std::span<const iovec> parts) {
  std::size_t done = 0;
  for (const iovec& part : parts) done += copy(payload.subspan(done), part);
  return done;
}
[[gnu::always_inline]] inline std::size_t scatter(std::span<const std::byte> payload, const msghdr& message) {
  if (message.msg_iovlen == 1) [[likely]]
    return copy(payload, *message.msg_iov);
  return copy_to_parts(payload, {message.msg_iov, message.msg_iovlen});
}

}  // namespace

// The functions on the path of each datagram are inlined into one.

[[gnu::always_inline]] inline bool UdpSocket::is_kernel_due() noexcept {
  if (kernel_hint_.load(std::memory_order_relaxed) || ring_count_.load(std::memory_order_relaxed) == 0) return true;
  const unsigned polls = polls_.load(std::memory_order_relaxed) + 1;
  polls_.store(polls, std::memory_order_relaxed);
  return polls >= polls_per_kernel_look_ && polls_per_kernel_look_ != 0;
}

/// Polls all rings, even when the first has served the call, so that none is neglected. Returns `nothing` only if all
/// are empty.
[[gnu::always_inline]] inline ethernet::Ring::Look UdpSocket::poll_rings(ethernet::WaitingCall* waiting) noexcept {
  auto found = ethernet::Ring::Look::nothing;
  for_each_polled([&](ethernet::Ring& ring) { found = std::max(found, ring.poll(waiting)); });
  if (ring_count_.load(std::memory_order_acquire) > 0 &&
      attached_generation_.load(std::memory_order_relaxed) != ethernet_->address_generation()) [[unlikely]]
    follow_addresses();
  return found;
}

/// Polls on until a datagram is there or the rings are empty: a datagram for this socket may be behind datagrams for
/// others, or another thread may be handling it.
[[gnu::noinline]] void UdpSocket::catch_up(ethernet::WaitingCall* waiting) noexcept {
  const auto is_done = [&] {
    return has_arrivals_.load(std::memory_order_relaxed) || (waiting != nullptr && waiting->is_served);
  };
  for_each_polled([&](ethernet::Ring& ring) {
    for (unsigned left = ring.most_batches(); left > 0 && !is_done(); --left) {
      if (ring.poll_in_turn(waiting) == ethernet::Ring::Look::nothing) return;
    }
  });
}

Result<ssize_t> UdpSocket::receive(msghdr& message, int flags) {
  if (is_closed()) return Error{EBADF, "recvmsg: closed meanwhile"};
  ethernet::Bursts::note_receive();
  if (rings_are_due_.load(std::memory_order_relaxed)) [[unlikely]]
    move_rings();
  if ((flags & (MSG_ERRQUEUE | MSG_OOB)) != 0) return receive_from_kernel(message, flags);
  const bool has_older =
      older_arrivals_.load(std::memory_order_relaxed) != 0 && has_arrivals_.load(std::memory_order_relaxed);
  if (!has_older && is_kernel_due()) {
    auto from_kernel = receive_from_kernel(message, flags);
    if (!runtime::would_block(from_kernel)) return from_kernel;
  }
  if (!has_arrivals_.load(std::memory_order_relaxed)) {
    WaitingReceive call{{.sink = *this}, message, flags};
    ethernet::WaitingCall* const waiting = (flags & MSG_PEEK) == 0 ? &call : nullptr;
    const ethernet::Ring::Look found = poll_rings(waiting);
    if (call.is_served) return call.answer;
    if (found != ethernet::Ring::Look::nothing && (is_nonblocking() || (flags & MSG_DONTWAIT) != 0)) [[unlikely]] {
      catch_up(waiting);
      if (call.is_served) return call.answer;
    }
  }
  if (has_arrivals_.load(std::memory_order_relaxed)) return receive_waiting(message, flags);
  if (is_nonblocking() || (flags & MSG_DONTWAIT) != 0) {
    statistics_.count(Count::rx_eagains);
  } else if (read_shut_.load(std::memory_order_relaxed)) [[unlikely]] {
    // Linux does not wait when reading has been shut down.
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    message.msg_flags = 0;
    return 0;
  }
  return Error{EAGAIN, "recvmsg"};
}

/// receive_lock_ held.
[[gnu::always_inline]] inline void UdpSocket::count_received(std::size_t bytes) {
  runtime::VmaSocketSlot& slot = statistics_.slot();
  runtime::add_relaxed(slot[Count::rx_packets], 1);
  runtime::add_relaxed(slot[Count::rx_bytes], bytes);
  slot[runtime::VmaSocketLevel::rx_thread].store(this_thread_id(), std::memory_order_relaxed);
  if (receive_choice_.should_move()) rings_are_due_.store(true, std::memory_order_relaxed);
  if (has_slept_.load(std::memory_order_relaxed)) {
    has_slept_.store(false, std::memory_order_relaxed);
  } else {
    runtime::add_relaxed(slot[Count::poll_hits], 1);
  }
}

/// Copies a datagram to the application, as recvmsg(2) does, and returns the result of that call. receive_lock_ held.
[[gnu::always_inline]] inline ssize_t UdpSocket::give(const ethernet::Packet& datagram, msghdr& message, int flags) {
  const auto payload = datagram.payload;
  const std::size_t copied = scatter(payload, message);
  message.msg_flags = copied < payload.size() ? MSG_TRUNC : 0;
  if (message.msg_name != nullptr) {
    wire::copy_source(datagram.headers, datagram.layout, datagram.ifindex, domain_,
                      static_cast<sockaddr*>(message.msg_name), message.msg_namelen);
  }
  if (message.msg_control != nullptr) {
    write_control(receive_options_, datagram, receive_options_.overflow ? all_drops() : 0, message);
  } else {
    message.msg_controllen = 0;
  }
  if ((flags & MSG_PEEK) == 0) count_received(payload.size());
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? payload.size() : copied);
}

/// Receives a datagram from the queue.
Result<ssize_t> UdpSocket::receive_waiting(msghdr& message, int flags) {
  const std::lock_guard guard(receive_lock_);
  if (arrivals_.empty()) return Error{EAGAIN, "recvmsg"};  // another thread has taken it
  const ssize_t answer = give(arrivals_.front().packet(), message, flags);
  if ((flags & MSG_PEEK) != 0) return answer;
  arrivals_.pop();
  if (const std::size_t older = older_arrivals_.load(std::memory_order_relaxed); older != 0) [[unlikely]]
    older_arrivals_.store(older - 1, std::memory_order_relaxed);
  show_queue();
  if (arrivals_.empty()) has_arrivals_.store(false, std::memory_order_relaxed);
  return answer;
}

ethernet::Delivery UdpSocket::deliver(ethernet::Incoming& incoming, const wire::EndName& source) noexcept {
  if (!accepts(source)) return ethernet::Delivery::refused;
  // The ring's lock does not suffice: the socket's other rings deliver at the same time.
  const std::lock_guard guard(receive_lock_);
  if (!source_filters_.empty() && is_filtered(incoming.packet())) [[unlikely]]
    return ethernet::Delivery::done;
  auto* const call = static_cast<WaitingReceive*>(incoming.call_of(*this));
  if (call == nullptr || !arrivals_.empty())
    return keep(incoming) ? ethernet::Delivery::waits : ethernet::Delivery::done;
  call->answer = give(incoming.packet(), call->message, call->flags);
  call->is_served = true;
  return ethernet::Delivery::done;
}

/// Puts a datagram into the queue. Returns false when there is no room. receive_lock_ held.
bool UdpSocket::keep(ethernet::Incoming& incoming) {
  const std::size_t bytes = incoming.packet().payload.size();
  const std::size_t waiting = arrivals_.payload_bytes() + kBytesBesidePayload * arrivals_.count();
  auto arrival = waiting + bytes > receive_limit_ && !arrivals_.empty() ? std::nullopt : incoming.keep();
  if (!arrival) {
    statistics_.count(Count::ready_packets_dropped);
    statistics_.count(Count::ready_bytes_dropped, bytes);
    return false;
  }
  arrivals_.push(*std::move(arrival));
  show_queue();
  statistics_.raise(runtime::VmaSocketLevel::ready_packets_max, arrivals_.count());
  statistics_.raise(runtime::VmaSocketLevel::ready_bytes_max, arrivals_.payload_bytes());
  has_arrivals_.store(true, std::memory_order_relaxed);
  note_activity();
  return true;
}

std::uint32_t UdpSocket::drops_of_rings() const {
  return static_cast<std::uint32_t>(statistics_.value(Count::ready_packets_dropped));
}

std::uint32_t UdpSocket::all_drops() const {
  const std::uint32_t by_rings = drops_of_rings();
  return kernel_counts_copies_.load(std::memory_order_relaxed) ? by_rings : by_rings + kernel_drops_of(fd());
}

Result<ssize_t> UdpSocket::receive_from_kernel(msghdr& message, int flags) {
  polls_.store(0, std::memory_order_relaxed);
  if (is_inherited_.load(std::memory_order_relaxed)) [[unlikely]]
    look_for_family();
  const std::size_t control_room = message.msg_controllen;
  const ssize_t got = ::recvmsg(fd(), &message, flags | MSG_DONTWAIT);
  if (got >= 0) {
    if (tells_drops_.load(std::memory_order_relaxed) && control_room != 0 && (flags & MSG_ERRQUEUE) == 0) {
      add_drops(message, control_room, drops_of_rings(), !kernel_counts_copies_.load(std::memory_order_relaxed));
    }
    kernel_hint_.store(true, std::memory_order_relaxed);  // there may be more
    statistics_.count(Count::rx_os_packets);
    statistics_.count(Count::rx_os_bytes, static_cast<std::uint64_t>(got));
    return got;
  }
  const Error error = Error::last("recvmsg");
  if (error.code == EAGAIN) {
    kernel_hint_.store(false, std::memory_order_relaxed);
  } else {
    statistics_.count(Count::rx_os_errors);
  }
  return error;
}

/// Polls the rings. Returns whether a datagram waits.
bool UdpSocket::progress() noexcept {
  if (!has_arrivals_.load(std::memory_order_relaxed) && poll_rings(nullptr) == ethernet::Ring::Look::some)
    catch_up(nullptr);
  return has_arrivals_.load(std::memory_order_relaxed);
}

std::uint32_t UdpSocket::kernel_events() noexcept {
  const int saved_errno = errno;
  polls_.store(0, std::memory_order_relaxed);
  pollfd entry{fd(), POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int ready = ::poll(&entry, 1, 0);
  errno = saved_errno;
  const auto events = ready > 0 ? static_cast<std::uint32_t>(static_cast<std::uint16_t>(entry.revents)) : 0;
  kernel_hint_.store((events & (POLLIN | POLLERR | POLLHUP)) != 0, std::memory_order_relaxed);
  return events;
}

std::uint32_t UdpSocket::ready() noexcept {
  ethernet::Bursts::note_look();
  std::uint32_t events = EPOLLOUT | EPOLLWRNORM;
  if (progress()) events |= EPOLLIN | EPOLLRDNORM;
  if (is_kernel_due()) {
    const std::uint32_t kernels = kernel_events();
    events = (events & (EPOLLIN | EPOLLRDNORM)) | kernels;
    if ((kernels & EPOLLIN) != 0) events |= EPOLLRDNORM;
    if ((kernels & EPOLLOUT) != 0) events |= EPOLLWRNORM;
  }
  return events;
}

runtime::WaitFds UdpSocket::arm() noexcept {
  ethernet::Bursts::note_look();
  const std::lock_guard guard(setup_lock_);
  come_back_when_alone();
  // Most sockets have one ring. They need no descriptor for sleeping: the caller waits for the kernel's socket and the
  // ring's channel.
  const std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  if (!bell_ && std::has_single_bit(polled) && !kernel_is_full_.load(std::memory_order_relaxed)) {
    ethernet::Ring& ring = *rings_[static_cast<std::size_t>(std::countr_zero(polled))];
    is_deaf_.store(false, std::memory_order_relaxed);
    ring.arm();
    statistics_.count(Count::poll_misses);
    has_slept_.store(true, std::memory_order_relaxed);
    return {{fd(), ring.fd()}};
  }
  const std::size_t count = ring_count_.load(std::memory_order_relaxed);
  const bool wants_room = kernel_is_full_.load(std::memory_order_relaxed);
  const bool needs_bell = count != 0 || wants_room;
  const bool has_bell = needs_bell && make_bell();
  is_deaf_.store(needs_bell && !has_bell, std::memory_order_relaxed);
  if (!has_bell) return {{fd(), -1}};
  if (wants_room) [[unlikely]]
    watch_kernel(EPOLLIN | EPOLLOUT);
  for_each_polled([](ethernet::Ring& ring) { ring.arm(); });
  statistics_.count(Count::poll_misses);
  has_slept_.store(true, std::memory_order_relaxed);
  return {{bell_.get(), -1}};
}

/// A sleep without a bell is short, because nothing announces datagrams of rings.
Nanos UdpSocket::deadline() noexcept {
  constexpr Nanos kDeafSleep = std::chrono::milliseconds(10);
  return is_deaf_.load(std::memory_order_relaxed) ? monotonic_now() + kDeafSleep : Nanos::max();
}

/// Returns false when no more descriptors can be opened. setup_lock_ held.
bool UdpSocket::make_bell() noexcept {
  if (bell_) return true;
  UniqueFd bell(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {}};
  bool complete = bell && ::epoll_ctl(bell.get(), EPOLL_CTL_ADD, fd(), &event) == 0;
  for_each_polled([&](const ethernet::Ring& ring) {
    complete = complete && ::epoll_ctl(bell.get(), EPOLL_CTL_ADD, ring.fd(), &event) == 0;
  });
  if (complete) bell_ = out_of_the_way(std::move(bell));
  return complete;
}

/// Sets the events of the kernel's socket that ring the bell. setup_lock_ held.
void UdpSocket::watch_kernel(std::uint32_t events) noexcept {
  epoll_event event{.events = events, .data = {}};
  if (bell_) ::epoll_ctl(bell_.get(), EPOLL_CTL_MOD, fd(), &event);
}

void UdpSocket::woken() noexcept {
  if (kernel_is_full_.exchange(false, std::memory_order_relaxed)) [[unlikely]] {
    const std::lock_guard guard(setup_lock_);
    watch_kernel(EPOLLIN);
  }
  kernel_hint_.store(true, std::memory_order_relaxed);
  for_each_polled([](ethernet::Ring& ring) { ring.woken(); });
  note_activity();
}

bool UdpSocket::asks_kernel() const noexcept { return ring_count_.load(std::memory_order_relaxed) == 0; }

Result<int> UdpSocket::unread_bytes() {
  if (!progress()) catch_up(nullptr);
  {
    const std::lock_guard guard(receive_lock_);
    if (!arrivals_.empty()) return static_cast<int>(arrivals_.front().layout.payload_bytes);
  }
  int bytes = 0;
  if (::ioctl(fd(), FIONREAD, &bytes) != 0) return Error::last("FIONREAD");
  return bytes;
}

}  // namespace ringsock::vma
