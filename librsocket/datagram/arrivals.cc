#include "librsocket/datagram/arrivals.h"

#include <climits>

#include "librsocket/io_vector.h"

namespace ringsock::rs {

bool Arrivals::add(Arrival arrival) {
  if (arrival.own) {
    const std::size_t bytes = arrival.bytes.size() + kOverhead;
    if (own_bytes_ + bytes > most_own_bytes_) return false;
    own_bytes_ += bytes;
  } else {
    ++slots_;
  }
  queue_.push_back(std::move(arrival));
  return true;
}

std::optional<Slot> Arrivals::pop() {
  const Arrival& oldest = queue_.front();
  const bool is_own = oldest.own != nullptr;
  const Slot slot = oldest.slot;
  if (is_own) {
    own_bytes_ -= oldest.bytes.size() + kOverhead;
  } else {
    --slots_;
  }
  queue_.pop_front();
  return is_own ? std::nullopt : std::optional(slot);
}

void Arrivals::clear() {
  queue_.clear();
  own_bytes_ = 0;
  slots_ = 0;
}

Result<ssize_t> copy_out(const Arrival& arrival, msghdr& message, int flags, int family) {
  if (message.msg_iovlen > IOV_MAX) return Error{EMSGSIZE, "receive: parts"};
  IoCursor to(std::span<const iovec>(message.msg_iov, message.msg_iovlen));
  const std::size_t copied = to.fill_from(arrival.bytes.data(), arrival.bytes.size());
  if (message.msg_name != nullptr) {
    const SocketAddress source = family == AF_INET6 ? arrival.source.mapped() : arrival.source;
    source.copy_to(static_cast<sockaddr*>(message.msg_name), &message.msg_namelen);
  }
  message.msg_controllen = 0;
  message.msg_flags = copied < arrival.bytes.size() ? MSG_TRUNC : 0;
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? arrival.bytes.size() : copied);
}

}  // namespace ringsock::rs
