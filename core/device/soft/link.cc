#include "core/device/soft/link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace ringsock::soft {

/// A packet that arrived before the manager was there.
struct Link::Pending {
  LinkPacket type;
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxLinkFds * sizeof(int));

/// Every descriptor of a received message, owned.
std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Link::Link(UniqueFd socket) : socket_(std::move(socket)) {}

Link::~Link() = default;

void Link::ring() {
  if (is_abandoned()) return;
  const int saved_errno = errno;
  const auto wake = LinkPacket::wake;
  // A full socket is already readable at the other end; a dead peer is drain()'s to report.
  [[maybe_unused]] const ssize_t sent = ::send(fd(), &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL);
  errno = saved_errno;
}

Status Link::send(LinkPacket type, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (is_abandoned()) return Error{EPIPE, "link: another process's"};
  if (bytes.size() + 1 > kMaxLinkPacket || fds.size() > kMaxLinkFds) return Error{EMSGSIZE, "link: packet"};
  iovec parts[2] = {{&type, 1}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  alignas(cmsghdr) std::byte control[kControlBytes]{};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return Error::last("link: sendmsg");
  return ok();
}

bool Link::drain(int at_most) {
  if (is_abandoned()) return false;
  const int saved_errno = errno;
  std::lock_guard guard(lock_);
  bool woken = false;
  for (int packets = 0; packets < at_most && !peer_gone(); ++packets) {
    std::byte bytes[kMaxLinkPacket];
    alignas(cmsghdr) std::byte control[kControlBytes];
    iovec part{bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {
      peer_gone_.store(true, std::memory_order_release);
      break;
    }
    const auto type = static_cast<LinkPacket>(bytes[0]);
    std::vector<UniqueFd> fds = take_fds(message);
    woken = woken || type == LinkPacket::wake;
    if (type == LinkPacket::wake || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) continue;
    deliver({type, std::vector<std::byte>(bytes + 1, bytes + got), std::move(fds)});
  }
  if (woken && queue_pair_ != nullptr) queue_pair_->on_wake();
  if (peer_gone()) deliver_gone();
  errno = saved_errno;
  return woken;
}

void Link::deliver(Pending packet) {
  // A peer can send packets for ever to somebody who does not take them: keep what a connection can need.
  constexpr std::size_t kMaxKept = 4;
  if (manager_ != nullptr) {
    manager_->on_packet(packet.type, packet.bytes, packet.fds);
  } else if (kept_.size() < kMaxKept) {
    kept_.push_back(std::move(packet));
  }
}

void Link::deliver_gone() {
  if (queue_pair_ != nullptr && !std::exchange(queue_pair_told_gone_, true)) queue_pair_->on_peer_gone();
  if (manager_ != nullptr && !std::exchange(manager_told_gone_, true)) manager_->on_peer_gone();
}

Status Link::move_to(int fd) {
  std::lock_guard guard(lock_);
  if (::dup3(socket_.get(), fd, O_CLOEXEC) < 0) return Error::last("link: dup3");
  socket_.reset(fd);
  return ok();
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
  ::shutdown(fd(), SHUT_RDWR);
  errno = saved_errno;
}

void Link::set_manager(Sink* sink) {
  std::lock_guard guard(lock_);
  manager_ = sink;
  while (manager_ != nullptr && !kept_.empty()) {
    Pending packet = std::move(kept_.front());
    kept_.pop_front();
    manager_->on_packet(packet.type, packet.bytes, packet.fds);
  }
  if (peer_gone()) deliver_gone();
}

void Link::set_queue_pair(Sink* sink) {
  std::lock_guard guard(lock_);
  queue_pair_ = sink;
  if (peer_gone()) deliver_gone();
}

}  // namespace ringsock::soft
