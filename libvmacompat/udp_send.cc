// Sending, by the ring of the interface that the path leaves by, or by the kernel's socket.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "libvmacompat/statistics.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;

/// Flags that mean nothing for a datagram that leaves at once.
constexpr int kHarmlessFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
constexpr std::size_t kMostPieces = 15;
/// How many datagrams leave by rings before we look whether an ICMP message has told the kernel's socket something.
constexpr unsigned kSendsPerErrorLook = 32;

std::size_t payload_bytes(const msghdr& message) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

}  // namespace

Result<ssize_t> UdpSocket::send_by_kernel(const msghdr& message, int flags) {
  const ssize_t sent = ::sendmsg(fd(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    const Error error = Error::last("sendmsg");
    statistics_.count(error.code == EAGAIN ? Count::tx_os_eagains : Count::tx_os_errors);
    return error;
  }
  statistics_.count(Count::tx_os_packets);
  statistics_.count(Count::tx_os_bytes, static_cast<std::uint64_t>(sent));
  return sent;
}

Result<ssize_t> UdpSocket::send(const msghdr& message, int flags) {
  const bool is_plain = (flags & ~kHarmlessFlags) == 0 && message.msg_controllen == 0 &&
                        message.msg_iovlen <= kMostPieces && !kernel_only_.load(std::memory_order_relaxed);
  if (!is_plain) return send_by_kernel(message, flags);
  const std::size_t payload = payload_bytes(message);

  std::unique_lock guard(send_lock_);
  Destination* destination = nullptr;
  if (message.msg_name == nullptr) {
    if (is_connected_.load(std::memory_order_acquire)) destination = destination_for(peer_);
  } else if (const auto address =
                 SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen)) {
    if (address->family() == domain_ && address->port() != 0) destination = destination_for(*address);
  }
  if (destination == nullptr || !make_current(*destination) || payload > destination->max_payload()) {
    guard.unlock();
    return send_by_kernel(message, flags);
  }
  if (++sends_ % kSendsPerErrorLook == 0) {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error != 0) {
      statistics_.count(Count::tx_errors);
      return Error{error, "sendmsg"};
    }
  }
  destination->note_use(ethernet_->network());

  alignas(8) std::array<std::byte, HeaderTemplate::kMaxBytes> header;
  destination->header().write(header, payload);
  std::array<ibv_sge, kMostPieces + 1> pieces;
  pieces[0] = {reinterpret_cast<std::uintptr_t>(header.data()),
               static_cast<std::uint32_t>(destination->header().bytes()), 0};
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    pieces[i + 1] = {reinterpret_cast<std::uintptr_t>(message.msg_iov[i].iov_base),
                     static_cast<std::uint32_t>(message.msg_iov[i].iov_len), 0};
  }
  const int error =
      destination->ring()->send(std::span(pieces).first(message.msg_iovlen + 1), IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
  if (error == 0) {
    statistics_.count(Count::tx_packets);
    statistics_.count(Count::tx_bytes, payload);
    statistics_.set(runtime::VmaSocketLevel::tx_thread, this_thread_id());
    if (send_choice_.should_move()) {
      options_generation_.fetch_add(1, std::memory_order_relaxed);  // the next one asks for its ring anew
      statistics_.count(Count::tx_migrations);
    }
    return static_cast<ssize_t>(payload);
  }
  statistics_.count(error == ENOMEM ? Count::tx_eagains : Count::tx_errors);
  guard.unlock();
  return send_by_kernel(message, flags);  // the queue is full, the interface is down: it knows what to answer
}

/// Of those known, or a new one in place of the one that was not used for longest. send_lock_ held.
Destination* UdpSocket::destination_for(const SocketAddress& address) {
  const auto is_it = [&](const auto& one) { return one->address() == address; };
  const auto found = std::find_if(destinations_.begin(), destinations_.end(), is_it);
  if (found == destinations_.begin() && !destinations_.empty()) [[likely]]
    return found->get();
  if (found != destinations_.end()) {
    std::rotate(destinations_.begin(), found, found + 1);
  } else {
    if (destinations_.size() == kMostDestinations) destinations_.pop_back();
    destinations_.insert(destinations_.begin(), std::make_unique<Destination>(address));
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
  if (!send_options_ || send_options_generation_ != options_generation_.load(std::memory_order_relaxed)) {
    send_options_generation_ = options_generation_.load(std::memory_order_relaxed);
    send_options_ = SendOptions::of(fd(), domain_);
  }
  destination.find_way(*ethernet_, local_, *send_options_, send_options_generation_, send_choice_);
  if (destination.ring() == nullptr) return false;
  // Answers come where the kernel did not bind us, too.
  if (!is_bound_ && !is_connected_.load(std::memory_order_relaxed) && !shares_port()) {
    attach_at(destination.source(), destination.ring()->interface().ifindex());
    describe();
  }
  return true;
}

Result<int> UdpSocket::unsent_bytes() {
  int bytes = 0;
  if (::ioctl(fd(), SIOCOUTQ, &bytes) != 0) return Error::last("SIOCOUTQ");
  return bytes;
}

}  // namespace ringsock::vma
