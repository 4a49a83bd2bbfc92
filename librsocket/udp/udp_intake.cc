#include "librsocket/udp/udp_intake.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/calls_at_once.h"
#include "core/base/clock.h"
#include "core/base/libc_calls.h"
#include "core/device/shm/names/port_lookup.h"
#include "core/device/shm/names/port_name.h"
#include "core/transports/kernel_calls.h"
#include "core/transports/rules.h"

namespace ringsock::rs {

namespace {

constexpr unsigned kDatagramsBeforeDoor = 4;
constexpr unsigned kLooksPerKernelLook = 64;      ///< at empty rings, by a call that comes again soon
constexpr unsigned kDatagramsPerKernelLook = 64;  ///< while rings have datagrams
constexpr std::size_t kControlRoom = CMSG_SPACE(sizeof(std::uint32_t)) + soft::kPlaceRoom;

/// recvmsg(2) without waiting.
Result<ssize_t> receive_by_kernel(int fd, msghdr& message, int flags) {
  const ssize_t got = ask_kernel(fd, message, flags);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

SocketAddress source_of(const sockaddr_storage& name, socklen_t length) {
  const auto source = SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), length);
  return source ? soft::canonical_address(*source) : SocketAddress();
}

/// recvmsg(2) without waiting, from a socket that tells losses and places, which the application has not asked for.
/// There is no other control data.
Result<ssize_t> receive_without_control(int fd, msghdr& message, int flags) {
  message.msg_control = nullptr;
  message.msg_controllen = 0;
  auto got = receive_by_kernel(fd, message, flags);
  if (got) message.msg_flags &= ~MSG_CTRUNC;
  return got;
}

/// Makes the kernel's socket tell losses and places, or not any more.
void tell_more(int fd, int domain, bool on) {
  const int value = on ? 1 : 0;
  ::setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &value, sizeof value);
  soft::tell_places(fd, domain, on);
}

/// Returns how many datagrams the socket had lost when this one came, 0: none, or unknown.
std::uint32_t drops_before(const msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  std::uint32_t drops = 0;
  const bool is_told = header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SO_RXQ_OVFL;
  if (is_told) std::memcpy(&drops, CMSG_DATA(header), sizeof drops);
  return drops;
}

}  // namespace

// -- the rings -------------------------------------------------------------------------------------

/// Returns the oldest datagram of a ring that does not wait for the kernel, from one ring after the other.
std::optional<UdpIntake::Next> UdpIntake::next_of_rings() {
  order_.begin_looks();
  auto& rings = rings_->rings();
  for (std::size_t seen = 0; seen < rings.size();) {
    if (next_ring_ >= rings.size()) next_ring_ = 0;
    Ring& ring = rings[next_ring_];
    const auto front = ring.reader.front();
    const bool is_over = !front || (!*front && (ring.is_over || ring.reader.has_ended()) && ring.reader.is_empty());
    if (is_over) {
      rings_->remove(next_ring_);
      continue;
    }
    if (*front && order_.is_turn_of(ring, **front)) return Next{next_ring_, **front};
    ++seen;
    ++next_ring_;
  }
  return std::nullopt;
}

Result<ssize_t> UdpIntake::take_of_ring(const Next& next, msghdr& message, int flags) {
  Ring& ring = rings_->rings()[next.ring];
  const Arrival arrival{ring.source, next.datagram.payload, {}, nullptr};
  auto copied = copy_out(arrival, message, flags, domain_);
  next_ring_ = next.ring;
  promised_ = (flags & MSG_PEEK) != 0 ? Promised::rings : Promised::nothing;
  if (!copied || (flags & MSG_PEEK) != 0) return copied;
  ring.awaited = 0;
  ring.reader.pop();
  ++next_ring_;
  ++taken_of_rings_;
  return copied;
}

/// Looks at the kernel's next datagram. Errors: EAGAIN, the kernel's.
Result<KernelOrder::OfKernel> UdpIntake::look_at_kernels_next(int fd) {
  sockaddr_storage name{};
  alignas(cmsghdr) std::array<std::byte, kControlRoom> control{};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (const auto seen = receive_by_kernel(fd, message, MSG_PEEK); !seen) return seen.error();
  const KernelOrder::OfKernel next{source_of(name, message.msg_namelen), drops_before(message),
                                   soft::place_of(message)};
  order_.next_is(*rings_, next);
  return next;
}

/// Returns the datagram of that source's ring that comes before the one that the kernel has now. What a ring has whose
/// sender has ended it comes before, too: its socket may go on under another name, by the kernel.
std::optional<UdpIntake::Next> UdpIntake::next_before(const SocketAddress& source) {
  auto& rings = rings_->rings();
  for (std::size_t i = 0; i < rings.size(); ++i) {
    if (!(rings[i].source == source) && !rings[i].reader.has_ended()) continue;
    if (const auto oldest = KernelOrder::next_of(rings[i])) return Next{i, *oldest};
  }
  return std::nullopt;
}

/// Without a thread that is about to sleep it looks rarely: until a sender knows that its ring was found it uses the
/// kernel.
bool UdpIntake::look_at_door(int fd, bool at_once) {
  constexpr std::uint64_t kShortestPause = 40'000;     // ticks(): some 20 us
  constexpr std::uint64_t kLongestPause = 32'000'000;  // some 10 ms
  if (calls_in_kernel != 0) return false;
  const std::uint64_t now = ticks();
  if (!at_once && now != 0 && now - looked_at_door_ < pause_at_door_) return false;
  looked_at_door_ = now;
  pause_at_door_ = std::clamp(2 * pause_at_door_, kShortestPause, kLongestPause);
  using Found = soft::IncomingRings::Found;
  const Found found = rings_->look();
  if (found == Found::nothing) return false;
  has_news_ = true;  // those who sleep have lost their bell
  if (found == Found::bells) return true;
  has_new_rings_ = true;
  pause_at_door_ = kShortestPause;
  if (!std::exchange(counts_losses_, true)) tell_more(fd, domain_, true);
  // The kernel gives a connected socket its peer's datagrams only.
  auto& rings = rings_->rings();
  for (std::size_t i = rings.size(); i-- > 0 && !peer_.is_unspecified();) {
    if (rings[i].source == peer_) continue;
    rings[i].reader.close();
    rings_->remove(i);
  }
  for (Ring& ring : rings) {
    if (!std::exchange(ring.is_known, true)) ring.reader.tell_mark(soft::kUdRingExpectsMark);
  }
  return true;
}

/// Opens the door of a socket that is used for more than a question.
void UdpIntake::open_door(int fd) {
  if (!may_have_rings_ || ++datagrams_ < kDatagramsBeforeDoor) return;
  if (door_opens_at_ != 0 && ticks() < door_opens_at_) return;
  const int saved_errno = errno;
  const auto name = name_by(::getsockname, fd, "datagrams: getsockname");
  const auto cookie = soft::socket_cookie(fd);
  may_have_rings_ = name && cookie && transports::permits_datagrams(domain_, *name, config::VmaRole::udp_receiver);
  if (may_have_rings_) {
    auto opened = soft::IncomingRings::open(*cookie);
    may_have_rings_ = static_cast<bool>(opened);
    if (opened) rings_ = *std::move(opened);
    order_.begin(fd);
    has_news_ = true;  // sleepers do not know the door
  }
  errno = saved_errno;
}

// -- receiving -------------------------------------------------------------------------------------

Result<ssize_t> UdpIntake::take_of_kernel_alone(int fd, msghdr& message, int flags) {
  auto got = receive_by_kernel(fd, message, flags);
  if (got && (flags & MSG_PEEK) == 0) open_door(fd);
  return got;
}

bool UdpIntake::begin_waiting_in_kernel() {
  if (!leaves_waiting_to_kernel()) return false;
  ++calls_in_kernel;
  return true;
}

bool UdpIntake::found_nothing_in_kernel(int fd) {
  must_look_ = false;
  if (!rings_ || calls_in_kernel != 0) return false;
  look_at_door(fd, std::exchange(was_woken_, false));
  return has_rings();
}

void UdpIntake::received_by_waiting(int fd) {
  if (rings_) {
    look_at_door(fd, false);
  } else {
    open_door(fd);
  }
}

/// Takes the kernel's next datagram, or one of a ring that comes before it.
Result<ssize_t> UdpIntake::take_of_kernel(int fd, msghdr& message, int flags) {
  taken_of_rings_ = 0;
  KernelOrder::OfKernel next{};
  if (!rings_->empty()) {
    const auto seen = look_at_kernels_next(fd);
    if (!seen) {
      has_released_ = seen.error().code == EAGAIN && order_.kernel_is_empty(fd, *rings_);
      promised_ = Promised::nothing;
      return seen.error();
    }
    next = *seen;
    const auto before = promised_ == Promised::kernels ? std::nullopt : next_before(next.source);
    if (before) return take_of_ring(*before, message, flags);
  }
  promised_ = Promised::nothing;
  auto got = counts_losses_ ? receive_without_control(fd, message, flags) : receive_by_kernel(fd, message, flags);
  if (!got) return got;
  if ((flags & MSG_PEEK) != 0) {
    promised_ = Promised::kernels;
    return got;
  }
  // Threads that sleep may have been meant to wake by it.
  if (std::exchange(is_armed_, false)) has_news_ = is_bell_ = true;
  if (std::exchange(is_bell_, false)) ++bells_;
  order_.was_taken(*rings_, next);
  return got;
}

Result<ssize_t> UdpIntake::receive(int fd, msghdr& message, int flags, bool is_last_look) {
  auto got = receive_next(fd, message, flags, is_last_look);
  if (got && rings_ && (flags & MSG_PEEK) == 0) count_use(fd);
  return got;
}

/// A ring is of use to those who find something without a sleep. One who has to be woken for most datagrams gets them
/// at the kernel's price, and pays for the look at the rings: he does without them for many times the time in which he
/// found that out.
void UdpIntake::count_use(int fd) {
  constexpr unsigned kDatagrams = 128;
  constexpr unsigned kTimes = 4;               // peers that all sleep at first may find out that they need not
  constexpr std::uint64_t kShortestPause = 8;  // of that time
  constexpr std::uint64_t kLongestPause = 6'400'000'000;  // ticks(): some 3 s
  if (++taken_ == 1) counts_since_ = ticks();
  if (taken_ < kDatagrams) return;
  const bool is_useless = 16 * std::exchange(bells_, 0) > 15 * std::exchange(taken_, 0);
  if (!is_useless || rings_->empty()) {
    useless_times_ = 0;
    pause_ = 0;
    return;
  }
  if (++useless_times_ < kTimes) return;
  const std::uint64_t now = ticks();
  pause_ = std::min(std::max(2 * pause_, kShortestPause * (now - counts_since_)), kLongestPause);
  door_opens_at_ = now + pause_;
  close_rings(fd);
  datagrams_ = 0;
  has_news_ = has_shut_door_ = true;
}

/// receive(), without the count.
Result<ssize_t> UdpIntake::receive_next(int fd, msghdr& message, int flags, bool is_last_look) {
  if (!backlog_.empty()) {
    auto got = backlog_.receive(message, flags, domain_);
    if (got || got.error().code != EAGAIN) return got;
  }
  if (!rings_) {
    must_look_ = false;
    return take_of_kernel_alone(fd, message, flags);
  }
  if (promised_ == Promised::kernels) {
    auto got = take_of_kernel(fd, message, flags);
    if (got || got.error().code != EAGAIN) return got;
  }
  const bool was_woken = std::exchange(was_woken_, false);
  must_look_ = false;
  // Usually the kernel's socket has woken the thread.
  if (was_woken && promised_ == Promised::nothing) {
    auto got = take_of_kernel(fd, message, flags);
    if (got || got.error().code != EAGAIN) return got;
  }
  // A thread that is about to sleep need not ask the kernel: the descriptors of arm() wake it at once.
  const bool is_due = is_last_look || was_woken || ++looks_ % kLooksPerKernelLook == 0;
  for (bool is_first = true;; is_first = false) {
    // Before the rings: their bells are read here.
    const bool has_new = (is_due || order_.has_waiting()) && look_at_door(fd, was_woken && is_first);
    const auto next = next_of_rings();
    const bool is_kernels_turn =
        is_first && taken_of_rings_ >= kDatagramsPerKernelLook && promised_ == Promised::nothing;
    if (next && !is_kernels_turn) return take_of_ring(*next, message, flags);
    if (!next && !is_due && !order_.has_waiting()) return Error{EAGAIN, "receive: rings"};
    auto got = take_of_kernel(fd, message, flags);
    const bool is_empty = !got && got.error().code == EAGAIN;
    if (!is_empty || (!next && !has_new && !std::exchange(has_released_, false))) return got;
  }
}

Result<int> UdpIntake::unread_bytes(int fd) {
  if (!backlog_.empty()) return static_cast<int>(backlog_.next_bytes());
  if (rings_) look_at_door(fd, true);
  for (int look = 0; has_rings() && promised_ != Promised::kernels && look < 2; ++look) {
    auto next = next_of_rings();
    const auto of_kernel = next ? Result<KernelOrder::OfKernel>(KernelOrder::OfKernel{}) : look_at_kernels_next(fd);
    if (!next && of_kernel) next = next_before(of_kernel->source);
    if (next) {
      next_ring_ = next->ring;
      promised_ = Promised::rings;
      return static_cast<int>(next->datagram.payload.size());
    }
    if (of_kernel || !order_.kernel_is_empty(fd, *rings_)) break;
  }
  int bytes = 0;
  if (::ioctl(fd, FIONREAD, &bytes) != 0) return Error::last("FIONREAD");
  if (rings_ && bytes > 0) promised_ = Promised::kernels;
  return bytes;
}

// -- waiting ---------------------------------------------------------------------------------------

bool UdpIntake::is_known_readable() {
  must_look_ = false;
  if (!backlog_.empty()) return true;
  return has_rings() && next_of_rings().has_value();
}

bool UdpIntake::is_due_for_kernel() { return ++looks_ % kLooksPerKernelLook == 0; }

bool UdpIntake::becomes_readable(int fd) {
  if (!rings_) return false;
  look_at_door(fd, std::exchange(was_woken_, false));
  // Another thread may have found a ring to wait since the kernel's socket was found empty.
  if (order_.has_waiting() && (transports::kernel_events(fd) & EPOLLIN) != 0) return true;
  // Before the next look at the rings: what they have got since the kernel's socket was found empty may come behind
  // something that the kernel has got since.
  const bool has_released = order_.kernel_is_empty(fd, *rings_);
  return next_of_rings().has_value() || has_released;
}

int UdpIntake::arm() {
  must_look_ = true;
  if (!rings_) return -1;
  rings_->arm();
  is_armed_ = !rings_->empty();
  return calls_in_kernel == 0 ? rings_->fd() : -1;
}

void UdpIntake::woken() {
  must_look_ = was_woken_ = true;
  // The caller tells the others, which arm the rings again. Until then the senders need not wake anybody.
  if (!std::exchange(is_armed_, false)) return;
  is_bell_ = true;
  if (rings_) rings_->disarm();
}

// -- the end ---------------------------------------------------------------------------------------

/// Keeps the kernel's next datagram, unless a ring's comes before. Returns false when the kernel's socket is empty.
bool UdpIntake::keep_one_of_kernel(int fd, std::span<std::byte> room) {
  const auto seen = look_at_kernels_next(fd);
  if (!seen) return false;
  if (next_before(seen->source)) return true;
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const auto got = receive_without_control(fd, message, 0);
  if (!got) return false;
  order_.was_taken(*rings_, *seen);
  soft::SenderSocket sender;
  for (const Ring& ring : rings_->rings()) {
    if (ring.source == seen->source) sender = ring.sender;
  }
  backlog_.add(seen->source, room.first(static_cast<std::size_t>(*got)), sender);
  return true;
}

/// Ends the rings. What is in them goes to the backlog, with the kernel's datagrams that come before. After that the
/// backlog comes before all that the kernel has.
void UdpIntake::close_rings(int fd) {
  constexpr std::size_t kMostBytes = 65536;
  constexpr int kMostOfKernel = 4096;
  if (!rings_) return;
  const int saved_errno = errno;
  rings_->shut_door();
  for (Ring& ring : rings_->rings()) ring.reader.close();
  std::vector<std::byte> room;
  int of_kernel = 0;
  for (;;) {
    if (const auto next = next_of_rings()) {
      Ring& ring = rings_->rings()[next->ring];
      backlog_.add(ring.source, next->datagram.payload, ring.sender);
      ring.reader.pop();
      continue;
    }
    if (!order_.has_waiting()) break;
    room.resize(kMostBytes);
    if (++of_kernel <= kMostOfKernel && keep_one_of_kernel(fd, room)) continue;
    order_.release(*rings_);
  }
  rings_.reset();
  if (std::exchange(counts_losses_, false)) tell_more(fd, domain_, false);
  promised_ = Promised::nothing;
  order_.end();
  errno = saved_errno;
}

void UdpIntake::set_peer(int fd, const SocketAddress& peer) {
  close_rings(fd);
  peer_ = peer;
  datagrams_ = 0;
}

void UdpIntake::leave_rings(int fd) {
  may_have_rings_ = false;
  close_rings(fd);
}

void UdpIntake::close() {
  may_have_rings_ = false;
  if (rings_) {
    for (Ring& ring : rings_->rings()) ring.reader.close();
  }
  rings_.reset();
  backlog_.clear();
}

namespace {

bool is_for_one_buffer(const msghdr& message) {
  return message.msg_iovlen == 1 && message.msg_name == nullptr && message.msg_controllen == 0;
}

/// Makes the answer of recv(2) with MSG_TRUNC that of recvmsg(2) with `flags`.
ssize_t as_recvmsg(msghdr& message, int flags, ssize_t got) {
  if (got < 0) return got;
  const std::size_t room = message.msg_iov[0].iov_len;
  const bool is_cut = static_cast<std::size_t>(got) > room;
  message.msg_flags = is_cut ? MSG_TRUNC : 0;
  return is_cut && (flags & MSG_TRUNC) == 0 ? static_cast<ssize_t>(room) : got;
}

}  // namespace

ssize_t wait_for_kernel(int fd, msghdr& message, int flags) {
  if (!is_for_one_buffer(message)) return libc_calls.recvmsg(fd, &message, flags);
  const iovec& part = message.msg_iov[0];
  return as_recvmsg(message, flags, libc_calls.recv(fd, part.iov_base, part.iov_len, flags | MSG_TRUNC));
}

ssize_t ask_kernel(int fd, msghdr& message, int flags) {
  if (!is_for_one_buffer(message)) return recvmsg_at_once(fd, message, flags);
  const iovec& part = message.msg_iov[0];
  return as_recvmsg(message, flags, recv_at_once(fd, part.iov_base, part.iov_len, flags | MSG_TRUNC));
}

}  // namespace ringsock::rs
