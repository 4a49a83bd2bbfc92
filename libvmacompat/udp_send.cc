// Sending, by the ring of the interface that the path leaves by, or by the kernel's socket.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>

#include "libvmacompat/socket_options.h"
#include "libvmacompat/thread_id.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;

/// Flags that mean nothing for a datagram that leaves at once.
constexpr int kHarmlessFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
constexpr std::size_t kMostPieces = 15;
/// The kernel's tick: some nanoseconds to read, and it changes each few milliseconds.
std::int64_t tick() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_nsec;
}

/// Linux has cut into so many at least since it can; what it makes of more it tells itself.
constexpr std::size_t kMostSegments = 64;

/// Whether rings carry it: in one packet, or cut into some.
bool fits(const Destination& destination, std::size_t payload, std::uint16_t segment_bytes) {
  if (segment_bytes == 0 || payload <= segment_bytes) return payload <= destination.max_payload();
  constexpr std::size_t kLongest = 65535 - HeaderTemplate::kMaxBytes;
  return segment_bytes <= destination.max_payload() && payload <= std::min(kLongest, kMostSegments * segment_bytes) &&
         !destination.header().may_be_cut() &&  // each piece needs a number of its own
         destination.ring()->segments_udp();
}

std::size_t payload_bytes(const msghdr& message) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

}  // namespace

Result<ssize_t> UdpSocket::send_by_kernel(const msghdr& message, int flags) {
  if (is_inherited_.load(std::memory_order_relaxed)) [[unlikely]]
    look_for_family();
  const ssize_t sent = ::sendmsg(fd(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    const Error error = Error::last("sendmsg");
    statistics_.count(error.code == EAGAIN ? Count::tx_os_eagains : Count::tx_os_errors);
    return error;
  }
  is_corked_.store((flags & MSG_MORE) != 0, std::memory_order_relaxed);
  statistics_.count(Count::tx_os_packets);
  statistics_.count(Count::tx_os_bytes, static_cast<std::uint64_t>(sent));
  return sent;
}

Result<ssize_t> UdpSocket::send(const msghdr& message, int flags) {
  const RingNews news(*this);
  std::optional<SendControl> control;  // not made for most
  bool is_plain = (flags & ~kHarmlessFlags) == 0 && message.msg_iovlen <= kMostPieces &&
                  !kernel_only_.load(std::memory_order_relaxed) && !is_corked_.load(std::memory_order_relaxed) &&
                  !kernel_sends_.load(std::memory_order_relaxed);
  if (is_plain && message.msg_controllen != 0) [[unlikely]] {
    control = read_send_control(message);
    is_plain = control.has_value();
  }
  if (!is_plain) return send_by_kernel(message, flags);
  const std::uint16_t segment_bytes =
      control && control->has_segment_bytes ? control->segment_bytes : segment_bytes_.load(std::memory_order_relaxed);
  const std::size_t payload = payload_bytes(message);

  std::unique_lock guard(send_lock_);
  Destination* const destination = destination_for(message, control);
  if (destination == nullptr || !make_current(*destination) || !fits(*destination, payload, segment_bytes)) {
    guard.unlock();
    return send_by_kernel(message, flags);
  }
  if (const std::int64_t now = tick(); now != last_error_look_) {
    last_error_look_ = now;
    const int error = option_of(fd(), SOL_SOCKET, SO_ERROR, 0);
    if (error != 0) {
      statistics_.count(Count::tx_errors);
      return Error{error, "sendmsg"};
    }
  }
  destination->note_use(ethernet_->network());
  const int error = send_by_ring(*destination, message, payload, segment_bytes);
  if (error == 0) {
    count_sent(payload);
    return static_cast<ssize_t>(payload);
  }
  statistics_.count(error == ENOMEM ? Count::tx_eagains : Count::tx_errors);
  guard.unlock();
  return send_by_kernel(message, flags);  // the queue is full, the interface is down: it knows what to answer
}

void UdpSocket::count_sent(std::size_t payload) {
  statistics_.count(Count::tx_packets);
  statistics_.count(Count::tx_bytes, payload);
  statistics_.set(runtime::VmaSocketLevel::tx_thread, this_thread_id());
  if (!send_choice_.should_move()) return;
  options_generation_.fetch_add(1, std::memory_order_relaxed);  // the next one asks for its ring anew
  statistics_.count(Count::tx_migrations);
}

/// 0 or an errno value.
int UdpSocket::send_by_ring(const Destination& destination, const msghdr& message, std::size_t payload,
                            std::uint16_t segment_bytes) {
  alignas(8) std::array<std::byte, HeaderTemplate::kMaxBytes> header;
  destination.header().write(header, payload);
  const std::size_t header_bytes = destination.header().bytes();
  std::array<ibv_sge, kMostPieces + 1> pieces;
  pieces[0] = {reinterpret_cast<std::uintptr_t>(header.data()), static_cast<std::uint32_t>(header_bytes), 0};
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    pieces[i + 1] = {reinterpret_cast<std::uintptr_t>(message.msg_iov[i].iov_base),
                     static_cast<std::uint32_t>(message.msg_iov[i].iov_len), 0};
  }
  const std::span all = std::span(pieces).first(message.msg_iovlen + 1);
  if (segment_bytes != 0 && payload > segment_bytes) [[unlikely]]
    return destination.ring()->send_segments(std::span(header).first(header_bytes), all.subspan(1), segment_bytes);
  return destination.ring()->send(all, IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
}

/// Null: the kernel's.
Destination* UdpSocket::destination_for(const msghdr& message, const std::optional<SendControl>& control) {
  const WayControl* const way = control && control->family != AF_UNSPEC ? &control->way : nullptr;
  const auto fitting = [&](const SocketAddress& address) {
    return way == nullptr || address.unmapped().family() == control->family ? destination_for(address, way) : nullptr;
  };
  if (way == nullptr && message.msg_name != nullptr && !destinations_.empty() &&
      destinations_.front()->is_named(message.msg_name, message.msg_namelen)) [[likely]]
    return destinations_.front().get();
  if (message.msg_name == nullptr) return is_connected_.load(std::memory_order_acquire) ? fitting(peer_) : nullptr;
  const auto address = SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  return address && address->family() == domain_ && address->port() != 0 ? fitting(*address) : nullptr;
}

/// Of those known, or a new one in place of the one that was not used for longest. send_lock_ held.
Destination* UdpSocket::destination_for(const SocketAddress& address, const WayControl* control) {
  const auto is_it = [&](const auto& one) { return one->is(address, control); };
  const auto found = std::find_if(destinations_.begin(), destinations_.end(), is_it);
  if (found == destinations_.begin() && !destinations_.empty()) [[likely]]
    return found->get();
  if (found != destinations_.end()) {
    std::rotate(destinations_.begin(), found, found + 1);
  } else {
    if (destinations_.size() == kMostDestinations) destinations_.pop_back();
    destinations_.insert(destinations_.begin(), std::make_unique<Destination>(address, control));
  }
  return destinations_.front().get();
}

/// False: by the kernel. send_lock_ held.
bool UdpSocket::make_current(Destination& destination) {
  const std::uint32_t generation = options_generation_.load(std::memory_order_relaxed);
  if (ethernet_ && destination.is_current(ethernet_->network(), generation)) [[likely]]
    return destination.ring() != nullptr;
  const std::unique_lock setting_up(setup_lock_, std::try_to_lock);
  if (!setting_up) return false;
  if (local_.port() == 0) learn_names();  // a first datagram by the kernel binds the socket
  if (local_.port() == 0 || kernel_only_.load(std::memory_order_relaxed) || ethernet() == nullptr) return false;
  const SendOptions& options = send_options(destination.family());
  destination.find_way(*ethernet_, local_, options, send_options_generation_, send_choice_);
  if (destination.ring() == nullptr) return false;
  // Answers come where the kernel did not bind us, too.
  if (!is_bound_ && !is_connected_.load(std::memory_order_relaxed) && !shares_port()) {
    attach_at(destination.source(), destination.ring()->interface().ifindex());
    describe();
  }
  return true;
}

/// For destinations of that family. setup_lock_ held.
const SendOptions& UdpSocket::send_options(int family) {
  const std::uint32_t generation = options_generation_.load(std::memory_order_relaxed);
  if (send_options_generation_ != generation) {
    send_options_generation_ = generation;
    send_options_ = {};
  }
  const std::size_t which = family == AF_INET ? 0 : 1;
  auto& options = send_options_[which];
  if (!options) options = SendOptions::of(fd(), family, multicast_interfaces_[which]);
  return *options;
}

Result<int> UdpSocket::unsent_bytes() {
  int bytes = 0;
  if (::ioctl(fd(), SIOCOUTQ, &bytes) != 0) return Error::last("SIOCOUTQ");
  return bytes;
}

}  // namespace ringsock::vma
