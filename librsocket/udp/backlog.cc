#include "librsocket/udp/backlog.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/socket_memory.h"
#include "core/device/shm/names/port_name.h"
#include "core/runtime/shared_page.h"

namespace ringsock::rs {

void Backlog::add(const SocketAddress& source, std::span<const std::byte> bytes, const soft::SenderSocket& sender) {
  auto own = std::make_unique<std::byte[]>(bytes.size() + 1);
  if (!bytes.empty()) std::memcpy(own.get(), bytes.data(), bytes.size());
  const std::span<const std::byte> kept(own.get(), bytes.size());
  waiting_.push_back({{source, kept, {}, std::move(own)}, sender});
}

/// Forgets what other processes have taken. A number that goes back is a lie, and changes nothing.
void Backlog::follow() const {
  if (!shared_) return;
  const std::uint32_t taken = shared_->load(std::memory_order_relaxed);
  for (; taken_ < taken && !waiting_.empty(); ++taken_) waiting_.pop_front();
}

bool Backlog::empty() const {
  if (waiting_.empty()) return true;
  follow();
  return waiting_.empty();
}

/// Returns whether this process is the one that takes the oldest datagram.
bool Backlog::take() {
  if (!shared_) {
    waiting_.pop_front();
    return true;
  }
  std::uint32_t expected = taken_;
  const bool is_ours = shared_->compare_exchange_strong(expected, taken_ + 1, std::memory_order_relaxed);
  // Where the number went back nobody can say whose the datagram is: this process does not wait for it.
  if (!is_ours && expected > taken_) return false;
  ++taken_;
  waiting_.pop_front();
  return true;
}

Result<ssize_t> Backlog::receive(msghdr& message, int flags, int family) {
  while (!empty()) {
    msghdr copy = message;
    auto got = copy_out(waiting_.front().arrival, copy, flags, family);
    if (got && (flags & MSG_PEEK) == 0 && !take()) continue;
    if (got) message = copy;
    return got;
  }
  return Error{EAGAIN, "receive: taken by another process"};
}

void Backlog::clear() {
  waiting_.clear();
  shared_.reset();
  taken_ = 0;
}

void Backlog::share() {
  if (shared_ || waiting_.empty()) return;
  auto piece = runtime::shared_piece(sizeof(Count));
  if (!piece) return;
  auto* const count = new (piece.get()) Count(0);
  shared_ = {std::move(piece), count};
  taken_ = 0;
}

void Backlog::forked() {
  if (!shared_) clear();
}

// -- giving it to the kernel -----------------------------------------------------------------------

namespace {

/// The senders' sockets, while datagrams are given to the kernel.
class BorrowedSockets {
 public:
  /// Returns -1 where the sender's socket cannot be had.
  int find(const soft::SenderSocket& sender, const SocketAddress& source) {
    const auto known = std::find_if(sockets_.begin(), sockets_.end(),
                                    [&](const auto& one) { return one.sender == sender && one.source == source; });
    if (known != sockets_.end()) return known->fd.get();
    auto borrowed = soft::borrow_socket(sender, source);
    sockets_.push_back({sender, source, borrowed ? *std::move(borrowed) : UniqueFd()});
    return sockets_.back().fd.get();
  }

 private:
  struct Borrowed {
    soft::SenderSocket sender;
    SocketAddress source;
    UniqueFd fd;
  };
  std::vector<Borrowed> sockets_;
};

/// Returns whether the socket's buffer takes a datagram of `bytes`. The kernel loses what it does not take.
bool has_room(int fd, std::size_t bytes) {
  constexpr std::size_t kOverhead = 2048;  // of the kernel, for each datagram
  const auto memory = socket_memory(fd);
  return memory && (*memory)[SK_MEMINFO_RMEM_ALLOC] + bytes + kOverhead <= (*memory)[SK_MEMINFO_RCVBUF];
}

/// Returns where a sender of this host reaches the socket of that name.
SocketAddress destination_for(const SocketAddress& name, const SocketAddress& source, int sender) {
  SocketAddress to = name;
  if (to.is_wildcard()) {
    to = source;
    to.set_port(name.port());
  }
  int family = AF_INET;
  socklen_t length = sizeof family;
  ::getsockopt(sender, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family == AF_INET6 ? to.mapped() : to;
}

bool send_as(int sender, const Arrival& datagram, const SocketAddress& to) {
  iovec part{const_cast<std::byte*>(datagram.bytes.data()), datagram.bytes.size()};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to.get());
  message.msg_namelen = to.length();
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return ::sendmsg(sender, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(part.iov_len);
}

}  // namespace

void Backlog::give_to_kernel(int fd) {
  const auto name = name_by(::getsockname, fd, "datagrams: getsockname");
  if (!name) return;
  const SocketAddress ours = soft::canonical_address(*name);
  BorrowedSockets sockets;
  std::deque<Waiting> kept;
  while (!empty()) {
    const SocketAddress source = waiting_.front().arrival.source;
    const int sender = sockets.find(waiting_.front().sender, source);
    const bool is_given = sender >= 0 && has_room(fd, waiting_.front().arrival.bytes.size());
    if (!is_given && shared_) return;  // other processes count what waits
    Waiting next = std::move(waiting_.front());
    if (!take()) continue;
    if (!is_given || !send_as(sender, next.arrival, destination_for(ours, source, sender)))
      kept.push_back(std::move(next));
  }
  if (!shared_) waiting_ = std::move(kept);
}

}  // namespace ringsock::rs
