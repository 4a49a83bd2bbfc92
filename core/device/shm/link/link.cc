#include "core/device/shm/link/link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/close_elsewhere.h"
#include "core/base/log.h"
#include "core/base/passing.h"
#include "core/base/refusals.h"
#include "core/device/shm/link/rights_gate.h"
#include "core/device/shm/link/strangers.h"

namespace ringsock::soft {

/// A packet that arrived while no manager was set.
struct Link::Pending {
  LinkPacket type;
  std::vector<std::byte> bytes;
  PassedFd memory;
};

namespace {

/// A packet without data has its type only.
constexpr std::size_t kMaxShortPacket = 16;

/// Each end of a link sends one such packet.
bool has_data(LinkPacket type) {
  return type == LinkPacket::request || type == LinkPacket::reply || type == LinkPacket::reject;
}

/// Takes the descriptors of a received message. Returns the first one; `several` tells whether there were more.
PassedFd take_descriptor(msghdr& message, bool& several) {
  PassedFd first;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      several |= static_cast<bool>(first);
      first = PassedFd(UniqueFd(fd));
    }
  }
  return first;
}

}  // namespace

Link::Link(UniqueFd socket) : socket_(std::move(socket)), careful_(!has_rights_gate()) {}

Link::~Link() {
  if (!socket_ || may_close_here()) return;
  // The number itself is freed at once, because the application may know it, and before the closer has the copy, so
  // that this close is not the last.
  UniqueFd copy = out_of_the_way(std::move(socket_));
  close_elsewhere(std::move(copy));
}

/// Returns whether the socket's queue holds nothing whose close could block, and nothing can arrive any more.
bool Link::may_close_here() {
  if (!careful_.load(std::memory_order_relaxed)) return true;
  if (forbidden_.load(std::memory_order_relaxed) || is_abandoned()) return false;
  if (!shut_rights_gate(fd()) && !hung_up_.load(std::memory_order_relaxed)) return false;
  return is_queue_empty();
}

/// The end of the stream counts as not empty, because it looks like an empty packet, which may carry a descriptor.
bool Link::is_queue_empty() const {
  const int saved_errno = errno;
  std::byte byte{};
  const bool is_empty = ::recv(fd(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  errno = saved_errno;
  return is_empty;
}

bool Link::ring() {
  if (is_abandoned()) return true;
  const int saved_errno = errno;
  const auto wake = LinkPacket::wake;
  const std::lock_guard guard(number_lock_);
  // A full socket is already readable at the other end.
  const bool has_gone =
      ::send(fd(), &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && (errno == EPIPE || errno == ECONNRESET);
  errno = saved_errno;
  return !has_gone;
}

Status Link::send(LinkPacket type, std::span<const std::byte> bytes, int descriptor) {
  if (is_abandoned()) return Error{EPIPE, "link: another process's"};
  if (bytes.size() + 1 > kMaxLinkPacket) return Error{EMSGSIZE, "link: packet"};
  iovec parts[2] = {{&type, 1}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  PassingRoom room;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (descriptor >= 0) pass_with(message, room, descriptor);
  const std::lock_guard guard(number_lock_);
  if (::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return Error::last("link: sendmsg");
  return ok();
}

Status Link::ask_for_memory() {
  const std::lock_guard guard(lock_);
  return ask_locked(LinkPacket::want_memory);
}

void Link::ask_for_map() {
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (guard) static_cast<void>(ask_locked(LinkPacket::want_ready_map));
}

Status Link::ask_locked(LinkPacket question) {
  // Links of our own user are careful from now on, too: the memory that is asked for arrives the same way.
  careful_.store(true, std::memory_order_relaxed);
  wants_memory_ = true;
  open_rights_gate(fd());
  return send(question, {});
}

void Link::ask_for_sender() {
  const std::lock_guard guard(lock_);
  const int on = 1;
  wants_sender_ = ::setsockopt(fd(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0;
}

/// Takes the sender's credentials. Closes descriptors that the packet carries.
void Link::take_sender(msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS &&
      header->cmsg_len == CMSG_LEN(sizeof(ucred))) {
    ucred who{};
    std::memcpy(&who, CMSG_DATA(header), sizeof who);
    sender_ = who;
  }
  const int off = 0;
  wants_sender_ = ::setsockopt(fd(), SOL_SOCKET, SO_PASSCRED, &off, sizeof off) != 0;
}

/// Looks at the next packet, which stays in the queue. `memory` gets a descriptor that was asked for.
Link::Look Link::look_at_next(PassedFd& memory) {
  LinkPacket type{};
  iovec part{&type, sizeof type};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // Descriptors without room set MSG_CTRUNC.
  if (wants_memory_ || wants_sender_) message.msg_control = control;
  if (wants_sender_) message.msg_controllen = CMSG_SPACE(sizeof(ucred));
  if (wants_memory_) message.msg_controllen += CMSG_LEN(sizeof(int));
  const ssize_t got = ::recvmsg(fd(), &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Look::nothing : Look::gone;
  bool several = (message.msg_flags & MSG_CTRUNC) != 0;
  PassedFd passed = wants_memory_ ? take_descriptor(message, several) : PassedFd{};
  if (several || (passed && type != LinkPacket::memory && type != LinkPacket::ready_map)) {
    end_for_descriptor();
    return Look::forbidden;
  }
  memory = std::move(passed);
  return got == 0 ? Look::gone : Look::fine;
}

void Link::end_for_descriptor() {
  forbidden_.store(true, std::memory_order_relaxed);
  count_refusal(Refusal::descriptor);
  if (stranger_) distrust(*stranger_);
  ::shutdown(fd(), SHUT_RDWR);
}

/// Reads the next packet, of at most so many bytes as there is room for, and delivers it.
/// @param memory  the descriptor that the look at the packet has brought
Link::Taken Link::take_packet(PassedFd memory, std::span<std::byte> room) {
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // There is no room for descriptors: one that was asked for is known from the look.
  alignas(cmsghdr) std::byte sender[CMSG_SPACE(sizeof(ucred))];
  if (wants_sender_) {
    message.msg_control = sender;
    message.msg_controllen = CMSG_LEN(sizeof(ucred));
  }
  const ssize_t got = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Taken::nothing;
  if (got <= 0) {
    peer_gone_.store(true, std::memory_order_release);
    return Taken::nothing;
  }
  const auto type = static_cast<LinkPacket>(room[0]);
  if (memory) {
    wants_memory_ = false;
    // The gate is shut and the queue is empty: no descriptor whose close may block can arrive.
    if (shut_rights_gate(fd()) && is_queue_empty()) careful_.store(false, std::memory_order_relaxed);
  }
  if (type == LinkPacket::wake) return Taken::wake;
  if (has_data(type)) awaits_data_ = false;
  if (wants_sender_) take_sender(message);
  const int dropped = memory ? MSG_TRUNC : MSG_TRUNC | MSG_CTRUNC;
  if ((message.msg_flags & dropped) == 0)
    deliver(type, room.first(static_cast<std::size_t>(got)).subspan(1), std::move(memory));
  return Taken::other;
}

/// Apart, because a handler on a small signal stack may drain the link of an established connection.
[[gnu::noinline]] Link::Taken Link::take_long_packet(PassedFd memory) {
  std::array<std::byte, kMaxLinkPacket> room;
  return take_packet(std::move(memory), room);
}

bool Link::drain(int at_most) {
  if (is_abandoned()) return false;
  const int saved_errno = errno;
  std::lock_guard guard(lock_);
  bool woken = false;
  for (int packets = 0; packets < at_most && !peer_gone(); ++packets) {
    PassedFd memory;
    if (careful_.load(std::memory_order_relaxed)) [[unlikely]] {
      const Look look = look_at_next(memory);
      if (look == Look::nothing) {
        if (!wants_memory_ && has_rights_gate()) careful_.store(false, std::memory_order_relaxed);
        break;
      }
      if (look != Look::fine) {
        peer_gone_.store(true, std::memory_order_release);
        break;
      }
    }
    std::byte few[kMaxShortPacket];
    const Taken taken =
        awaits_data_ ? take_long_packet(std::move(memory)) : take_packet(std::move(memory), std::span(few));
    if (taken == Taken::nothing) break;
    woken = woken || taken == Taken::wake;
  }
  if (woken && queue_pair_ != nullptr) queue_pair_->on_wake();
  if (peer_gone()) deliver_gone();
  errno = saved_errno;
  return woken;
}

void Link::deliver(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) try {
  // Bounded by what a connection can need, because a peer can send any number of packets while nothing takes them.
  constexpr std::size_t kMaxKept = 4;
  if (type == LinkPacket::want_ready_map || type == LinkPacket::ready_map) {
    if (queue_pair_ != nullptr) queue_pair_->on_packet(type, bytes, std::move(memory));
  } else if (manager_ != nullptr) {
    manager_->on_packet(type, bytes, std::move(memory));
  } else if (kept_.size() < kMaxKept) {
    kept_.push_back({type, {bytes.begin(), bytes.end()}, std::move(memory)});
  }
} catch (const std::bad_alloc&) {
  lose_packet(type);
}

/// Called when there is no memory for a packet. Without a map of ready connections a peer is rung for; any other packet
/// is missed, so the connection ends.
void Link::lose_packet(LinkPacket type) {
  if (type == LinkPacket::want_ready_map || type == LinkPacket::ready_map) return;
  log_info("no memory for a packet of a connection, which ends");
  ::shutdown(fd(), SHUT_RDWR);
  peer_gone_.store(true, std::memory_order_release);
}

void Link::deliver_gone() {
  if (queue_pair_ != nullptr && !std::exchange(queue_pair_told_gone_, true)) queue_pair_->on_peer_gone();
  if (manager_ != nullptr && !std::exchange(manager_told_gone_, true)) manager_->on_peer_gone();
}

Status Link::move_to(int fd) {
  const std::scoped_lock guard(lock_, number_lock_);
  if (::dup3(socket_.get(), fd, O_CLOEXEC) < 0) return Error::last("link: dup3");
  socket_.reset(fd);
  return ok();
}

void Link::adopt(int fd) {
  const std::scoped_lock guard(lock_, number_lock_);
  [[maybe_unused]] const int gone = socket_.release();
  socket_.reset(fd);
}

void Link::abandon(bool give_away) {
  abandoned_.store(true, std::memory_order_release);
  if (!give_away) return;
  std::lock_guard guard(lock_);
  [[maybe_unused]] const int number = socket_.release();
}

void Link::hang_up() {
  if (is_abandoned()) return;
  const int saved_errno = errno;
  const std::lock_guard guard(number_lock_);
  ::shutdown(fd(), SHUT_RDWR);
  hung_up_.store(true, std::memory_order_relaxed);
  errno = saved_errno;
}

void Link::set_manager(Sink* sink) {
  std::lock_guard guard(lock_);
  manager_ = sink;
  while (manager_ != nullptr && !kept_.empty()) {
    Pending packet = std::move(kept_.front());
    kept_.pop_front();
    deliver(packet.type, packet.bytes, std::move(packet.memory));
  }
  if (peer_gone()) deliver_gone();
}

void Link::set_queue_pair(Sink* sink) {
  std::lock_guard guard(lock_);
  queue_pair_ = sink;
  if (peer_gone()) deliver_gone();
}

}  // namespace ringsock::soft
