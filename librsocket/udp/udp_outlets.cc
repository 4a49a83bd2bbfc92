#include "librsocket/udp/udp_outlets.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/calls_at_once.h"
#include "core/base/clock.h"
#include "core/device/shm/names/connect_target.h"
#include "core/device/shm/names/port_name.h"
#include "core/transports/rules.h"
#include "librsocket/io_vector.h"

namespace ringsock::rs {

namespace {

constexpr std::uint32_t kDatagramsBeforeRing = 4;

// stamp()s, some 0.3 to 1 ns each.
constexpr std::uint64_t kSecond = std::uint64_t{1} << 31;
constexpr std::uint64_t kShortest = kSecond >> 10;
constexpr std::uint64_t kForeign = 16 * kSecond;

std::uint64_t stamp() {
  const std::uint64_t now = ticks();
  return now != 0 ? now : 2 * static_cast<std::uint64_t>(monotonic_now().count());
}

/// Returns whether a ring can do what the call asks for.
bool is_plain(const msghdr& message, int flags) {
  constexpr int kHarmless = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
  return (flags & ~kHarmless) == 0 && message.msg_controllen == 0;
}

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address.in6().sin6_addr);
}

/// Returns whether datagrams to the address go to all sockets with the port: 127.255.255.255, and its like. The kernel
/// calls other broadcast addresses foreign.
bool is_loopback_broadcast(const SocketAddress& address) {
  constexpr in_addr_t kHosts = 0xffffff;
  return address.family() == AF_INET && address.is_loopback() &&
         (ntohl(address.in4().sin_addr.s_addr) & kHosts) == kHosts;
}

bool may_have_ring(const SocketAddress& to) {
  return to.port() != 0 && !to.is_wildcard() && !is_link_local(to) && !is_loopback_broadcast(to) &&
         soft::check_unicast(to);
}

/// sendmsg(2) without waiting, or send(2), which costs less, where that can do the same.
ssize_t send_by_kernel(int fd, const msghdr& message, int flags) {
  const bool is_simple = message.msg_iovlen == 1 && message.msg_controllen == 0 && message.msg_name == nullptr;
  if (!is_simple) return sendmsg_at_once(fd, message, flags);
  return send_at_once(fd, message.msg_iov[0].iov_base, message.msg_iov[0].iov_len, flags);
}

}  // namespace

std::size_t UdpOutlets::Hash::operator()(const SocketAddress& address) const noexcept {
  const std::string_view host = address.family() == AF_INET
                                    ? std::string_view(reinterpret_cast<const char*>(&address.in4().sin_addr), 4)
                                    : std::string_view(reinterpret_cast<const char*>(&address.in6().sin6_addr), 16);
  return std::hash<std::string_view>{}(host) ^ (std::size_t{address.port()} * 0x9e3779b97f4a7c15U);
}

std::size_t UdpOutlets::rings() const {
  return static_cast<std::size_t>(
      std::count_if(outlets_.begin(), outlets_.end(), [](const auto& one) { return one.second.ring != nullptr; }));
}

void UdpOutlets::forget_names() {
  peers_ = last_ = nullptr;
  last_length_ = 0;
}

void UdpOutlets::set_peer(const SocketAddress& peer) {
  outlets_.clear();
  forget_names();
  peer_ = peer;
}

void UdpOutlets::leave_rings() {
  has_left_ = true;
  outlets_.clear();
  forget_names();
}

/// Returns the destination's outlet, or null: then it is the kernel's.
UdpOutlets::Outlets::value_type* UdpOutlets::outlet_to(const SocketAddress& to) {
  if (!may_have_ring(to)) return nullptr;
  const auto known = outlets_.find(to);
  if (known != outlets_.end()) return &*known;
  if (outlets_.size() >= kMost + kMostRings) return nullptr;
  if (outlets_.size() >= kMost) {
    std::erase_if(outlets_, [](const auto& one) { return one.second.ring == nullptr; });
    forget_names();
  }
  return &*outlets_.try_emplace(to).first;
}

UdpOutlets::Outlets::value_type* UdpOutlets::find(const msghdr& message) {
  if (has_left_) return nullptr;
  if (message.msg_name == nullptr || message.msg_namelen == 0) {
    if (peers_ == nullptr && !peer_.is_unspecified()) peers_ = outlet_to(peer_);
    return peers_;
  }
  const bool is_last = last_ != nullptr && message.msg_namelen == last_length_ &&
                       std::memcmp(message.msg_name, last_name_.data(), last_length_) == 0;
  if (is_last) return last_;
  const auto to = SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  if (!to || (to->family() != domain_ && domain_ == AF_INET)) return nullptr;
  auto* const found = outlet_to(soft::canonical_address(*to));
  if (found == nullptr || message.msg_namelen > last_name_.size()) return found;
  std::memcpy(last_name_.data(), message.msg_name, message.msg_namelen);
  last_length_ = message.msg_namelen;
  last_ = found;
  return found;
}

inline void UdpOutlets::sent_by_kernel(int fd, Outlets::value_type& to) {
  Outlet& outlet = to.second;
  outlet.wakes = false;
  if (outlet.ring) return;
  if (++outlet.datagrams < kDatagramsBeforeRing) return;
  const std::uint64_t now = stamp();
  if (now >= outlet.look_at) [[unlikely]]
    look_for_door(fd, to, now);
}

Result<ssize_t> UdpOutlets::send_without_lock(int fd, const msghdr& message, int flags,
                                              std::unique_lock<BiasedMutex>& lock) {
  ++sending_;
  lock.unlock();
  const ssize_t sent = send_by_kernel(fd, message, flags);
  const Error why = Error::last("sendmsg");
  lock.lock();
  --sending_;
  if (sent < 0) return why;
  // Another thread may have changed the outlets.
  if (auto* const to = find(message); to != nullptr && !to->second.ring) sent_by_kernel(fd, *to);
  return sent;
}

/// Sends by the kernel what the ring does not take. Returns -1 and sets errno as sendmsg(2).
ssize_t UdpOutlets::send_beside_ring(int fd, Outlets::value_type& to, const msghdr& message, int flags) {
  Outlet& outlet = to.second;
  const bool marks = std::exchange(outlet.marks, false);
  const bool is_numbered = marks || (outlet.ring && outlet.ring->numbers_others());
  const soft::Place place = marks ? outlet.ring->next_mark(last_mark_) : soft::place_of(outlet.by_kernel + 1);
  ssize_t sent = is_numbered ? soft::send_with_place(fd, message, flags, to.first.family(), place)
                             : send_by_kernel(fd, message, flags);
  if (is_numbered && sent < 0 && errno == EINVAL) {  // perhaps for another reason
    end_ring(outlet);
    outlet.look_at = stamp() + kForeign;
    sent = send_by_kernel(fd, message, flags);
  } else if (marks && sent >= 0) {
    outlet.ring->sent_mark(last_mark_ = place);
    outlet.by_kernel = 0;
    return sent;
  }
  if (sent >= 0) {
    ++outlet.by_kernel;
    sent_by_kernel(fd, to);
  } else if (std::exchange(outlet.wakes, false)) {
    const int error = errno;
    outlet.ring->has_not_woken();
    errno = error;
  }
  return sent;
}

Result<ssize_t> UdpOutlets::send(int fd, const msghdr& message, int flags, std::unique_lock<BiasedMutex>& lock) {
  auto* const to = find(message);
  if (!keeps_lock_ && (to == nullptr || !to->second.ring)) return send_without_lock(fd, message, flags, lock);
  if (to != nullptr && to->second.ring && is_plain(message, flags)) {
    const auto bytes = total_bytes(message.msg_iov, message.msg_iovlen);
    if (bytes && *bytes <= soft::kMaxRingDatagram && put(fd, *to, message, *bytes)) return static_cast<ssize_t>(*bytes);
  }
  const ssize_t sent = to != nullptr ? send_beside_ring(fd, *to, message, flags) : send_by_kernel(fd, message, flags);
  return sent >= 0 ? Result<ssize_t>(sent) : Error::last("sendmsg");
}

Result<ssize_t> UdpOutlets::send_to_peer(int fd, const void* data, std::size_t bytes, int flags) {
  const ssize_t sent = send_at_once(fd, data, bytes, flags);
  if (sent < 0) return Error::last("send");
  sent_by_kernel(fd, *peers_);
  return sent;
}

/// Returns false where the kernel is to send the datagram.
bool UdpOutlets::put(int fd, Outlets::value_type& to, const msghdr& message, std::size_t bytes) {
  Outlet& outlet = to.second;
  if (const std::uint64_t now = stamp(); now >= outlet.look_at) [[unlikely]] {
    // Another socket may have got the port meanwhile.
    const auto receiver = soft::find_receiver(outlet.source, to.first, fd);
    const bool is_right = receiver && *receiver == outlet.ring->receiver();
    outlet.look_at = now + kSecond;
    if (!is_right) return end_ring(outlet);
  }
  if (outlet.overflows) {
    if (!outlet.ring->is_drained()) return false;
    outlet.overflows = false;
  }
  const std::span<const iovec> parts(message.msg_iov, message.msg_iovlen);
  switch (outlet.ring->put(outlet.by_kernel, parts, bytes)) {
    case soft::OutgoingRing::Put::done: return true;
    case soft::OutgoingRing::Put::early: return false;
    case soft::OutgoingRing::Put::marks: outlet.marks = true; return false;
    case soft::OutgoingRing::Put::asleep: outlet.wakes = true; return false;
    case soft::OutgoingRing::Put::full: outlet.overflows = true; return false;
    case soft::OutgoingRing::Put::gone: break;
  }
  return end_ring(outlet);
}

/// Ends the ring; the next datagram looks for another one. Returns false.
bool UdpOutlets::end_ring(Outlet& outlet) {
  outlet.ring.reset();
  outlet.wakes = outlet.marks = false;
  outlet.patience = outlet.look_at = 0;
  return false;
}

/// Called when it is time to look whether the destination takes part.
void UdpOutlets::look_for_door(int fd, Outlets::value_type& to, std::uint64_t now) {
  keeps_lock_ = sending_ != 0;
  if (keeps_lock_) return;
  Outlet& outlet = to.second;
  outlet.patience = std::clamp(2 * outlet.patience, kShortest, kSecond);
  outlet.look_at = now + outlet.patience;
  const int saved_errno = errno;
  open_ring(fd, to);
  errno = saved_errno;
}

/// A socket that has several addresses gets our datagrams in the order in which they were sent, to whichever of them:
/// two rings could not keep that. Returns whether there is a ring to the socket by another address, which ends.
bool UdpOutlets::leaves_to_kernel(const soft::KernelSocket& receiver, Outlet& outlet) {
  bool has_another = false;
  for (auto& [address, other] : outlets_) {
    if (!other.ring || !(other.ring->receiver() == receiver)) continue;
    has_another = true;
    end_ring(other);
    other.look_at = outlet.look_at = stamp() + kForeign;
  }
  return has_another;
}

/// Opens a ring if the destination takes part.
void UdpOutlets::open_ring(int fd, Outlets::value_type& to) {
  Outlet& outlet = to.second;
  if (!transports::permits_datagrams(domain_, to.first, config::VmaRole::udp_sender) ||
      !soft::check_local(to.first, fd)) {
    outlet.look_at += kForeign;
    return;
  }
  const auto source = source_towards(fd, to.first);
  if (!source || rings() >= kMostRings) return;
  const auto receiver = soft::find_receiver(*source, to.first, fd);
  if (!receiver || leaves_to_kernel(*receiver, outlet)) return;
  auto ring = soft::OutgoingRing::open(*receiver, {*source, fd});
  if (!ring) return;
  outlet.ring = *std::move(ring);
  outlet.source = *source;
  outlet.by_kernel = 0;
  outlet.overflows = false;
  outlet.look_at = stamp() + kSecond;
}

/// Returns the name that the kernel gives our datagrams to an address of this host.
Result<SocketAddress> UdpOutlets::source_towards(int fd, const SocketAddress& to) const {
  const auto name = name_by(::getsockname, fd, "datagrams: getsockname");
  if (!name) return name.error();
  const SocketAddress bound = soft::canonical_address(*name);
  if (bound.port() == 0) return Error{EINVAL, "datagrams: not bound"};
  if (!bound.is_wildcard()) {
    const bool is_source = bound.family() == to.family() && may_have_ring(bound);
    return is_source ? Result<SocketAddress>(bound) : Error{EINVAL, "datagrams: source"};
  }
  SocketAddress source = soft::source_towards(to);
  source.set_port(bound.port());
  return source;
}

}  // namespace ringsock::rs
