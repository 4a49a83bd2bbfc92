#include "core/device/shm/datagrams/incoming_rings.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/base/calls_at_once.h"
#include "core/base/clock.h"
#include "core/base/close_elsewhere.h"
#include "core/base/passing.h"
#include "core/base/refusals.h"
#include "core/device/shm/datagrams/knock.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

namespace {

/// Reads the first packet of a link, and maps the memory that came with it. The caller adds the link.
/// Errors: EAGAIN there is no packet yet; EPROTO it is no knock, or its memory no ring; ENOMEM.
Result<IncomingRings::Ring> read_knock(int link) {
  std::array<std::byte, sizeof(Knock) + 1> bytes;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return Error::last("datagrams: knock");
  PassedFd memory = passed_with(message);
  const auto sender = parse_knock(std::span(bytes).first(static_cast<std::size_t>(got)));
  if (!sender) return sender.error();
  struct stat status {};
  if (!memory || ::fstat(memory.get(), &status) != 0) return Error{EPROTO, "knock: memory"};
  const MemoryName name{status.st_dev, status.st_ino, 0, 0};
  if (const auto size = check_peer_memfd(memory.get(), name); !size) return size.error();
  auto segment = map_peer_segment(std::move(memory).take(), name, kUdSegmentBytes);
  if (!segment) return segment.error();
  if ((*segment)->bytes() != kUdSegmentBytes) return Error{EPROTO, "knock: size"};
  const auto process = identify_peer(link);
  if (!process) return process.error();
  return IncomingRings::Ring{UniqueFd(),
                             UdRingReader(*std::move(segment), kMaxRingDatagram),
                             canonical_address(sender->source),
                             {process->pid, sender->descriptor}};
}

/// Returns whether the process that has knocked is of our own user. What it has passed is not touched before.
bool is_trusted(int link) {
  const auto sender = identify_peer(link);
  return sender && sender->same_user && sender->pid != 0 && may_be_of_our_pid_namespace(sender->pid, monotonic_now());
}

}  // namespace

Result<std::unique_ptr<IncomingRings>> IncomingRings::open(std::uint64_t cookie) {
  constexpr int kBacklog = 256;
  UniqueFd events = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  UniqueFd door = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  if (!events || !door) return Error::last("datagrams: door");
  const AbstractAddress name(door_name(cookie));
  if (::bind(door.get(), name.get(), name.length) != 0) return Error::last("datagrams: name");
  if (::listen(door.get(), kBacklog) != 0) return Error::last("datagrams: listen");
  std::unique_ptr<IncomingRings> out(new IncomingRings(std::move(events), std::move(door)));
  if (Status watched = out->watch(out->door_.get()); !watched) return watched.error();
  return out;
}

IncomingRings::~IncomingRings() {
  for (Ring& ring : rings_) ring.reader.finish();
}

Status IncomingRings::watch(int fd) {
  epoll_event event{EPOLLIN | EPOLLRDHUP, {.fd = fd}};
  return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? ok() : Status(Error::last("datagrams: epoll"));
}

/// Accepts those who have knocked, if they are of our own user.
void IncomingRings::accept_links() {
  constexpr int kAtOnce = 64;
  for (int i = 0; i < kAtOnce && door_; ++i) {
    UniqueFd link(::accept4(door_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!link) return;
    if (!is_trusted(link.get()) || silent_.size() >= kMostSilent) {
      count_refusal(Refusal::port_claim);
      close_elsewhere(std::move(link));  // there may be descriptors in it
      continue;
    }
    link = out_of_the_way(std::move(link));
    if (watch(link.get())) silent_.push_back(std::move(link));
  }
}

void IncomingRings::enter(Ring ring) {
  if (rings_.size() >= kMost) return ring.reader.finish();
  ring.serial = ++last_serial_;
  rings_.push_back(std::move(ring));
}

/// Returns whether there is a new ring. A link that says something else ends.
bool IncomingRings::read_first_packet(int fd) {
  const auto link = std::find_if(silent_.begin(), silent_.end(), [fd](const UniqueFd& one) { return one.get() == fd; });
  if (link == silent_.end()) return false;
  auto ring = read_knock(fd);
  if (!ring && (ring.error().code == EAGAIN || ring.error().code == EINTR)) return false;
  const bool is_ring = static_cast<bool>(ring);
  if (is_ring) {
    ring->link = std::move(*link);
    enter(*std::move(ring));
  } else {
    count_refusal(Refusal::descriptor);
  }
  silent_.erase(link);
  return is_ring;
}

/// Reads the bells of a link, or its end. Returns whether there was something.
bool IncomingRings::read_bells(int fd) {
  constexpr int kMostBells = 64;  // the rest keeps fd() readable
  const auto ring = std::find_if(rings_.begin(), rings_.end(), [fd](const Ring& one) { return one.link.get() == fd; });
  if (ring == rings_.end()) return false;
  for (int i = 0; i < kMostBells; ++i) {
    char byte = 0;
    const ssize_t got = recv_at_once(fd, &byte, sizeof byte, 0);
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return i > 0;
    // The end. Nothing more comes, also where the sender was killed.
    ring->is_over = true;
    ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return true;
  }
  return true;
}

IncomingRings::Found IncomingRings::look() {
  const int saved_errno = errno;
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count <= 0) {
    errno = saved_errno;
    return Found::nothing;
  }
  const auto is_door = [this](const epoll_event& event) { return event.data.fd == door_.get(); };
  if (std::any_of(events.begin(), events.begin() + count, is_door)) accept_links();
  bool has_new = false, has_bells = false;
  for (std::size_t i = silent_.size(); i-- > 0;) has_new = read_first_packet(silent_[i].get()) || has_new;
  for (int i = 0; i < count; ++i) {
    if (read_bells(events[static_cast<std::size_t>(i)].data.fd)) has_bells = true;
  }
  if (has_new) arm();  // others may be asleep already
  errno = saved_errno;
  if (has_new) return Found::new_rings;
  return has_bells ? Found::bells : Found::nothing;
}

void IncomingRings::arm() {
  for (Ring& ring : rings_) ring.reader.arm();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void IncomingRings::disarm() {
  for (Ring& ring : rings_) ring.reader.disarm();
}

void IncomingRings::shut_door() {
  const int saved_errno = errno;
  accept_links();
  door_.reset();
  // A sender whose first packet has not come has put nothing into its ring yet.
  for (std::size_t i = silent_.size(); i-- > 0;) static_cast<void>(read_first_packet(silent_[i].get()));
  for (UniqueFd& link : silent_) close_elsewhere(std::move(link));
  silent_.clear();
  errno = saved_errno;
}

void IncomingRings::remove(std::size_t index) {
  rings_[index].reader.finish();
  if (index + 1 != rings_.size()) std::swap(rings_[index], rings_.back());
  rings_.pop_back();
}

}  // namespace ringsock::soft
