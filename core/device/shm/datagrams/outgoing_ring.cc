#include "core/device/shm/datagrams/outgoing_ring.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/calls_at_once.h"
#include "core/base/clock.h"
#include "core/base/passing.h"
#include "core/device/shm/datagrams/knock.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

namespace {

/// Connects to the door. Errors: as for OutgoingRing::open().
Result<UniqueFd> reach_door(const KernelSocket& receiver) {
  UniqueFd link = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  if (!link) return Error::last("datagrams: socket");
  const AbstractAddress door(door_name(receiver.cookie));
  if (::connect(link.get(), door.get(), door.length) != 0) return Error::last("datagrams: door");
  const auto owner = identify_peer(link.get());
  if (!owner) return owner.error();
  // Anybody may have bound the name.
  const bool is_trusted = owner->same_user && owner->pid != 0 && is_of_our_pid_namespace(owner->pid, monotonic_now());
  if (!is_trusted) return Error{EACCES, "datagrams: the door is another user's"};
  return link;
}

/// Presents the sender, and passes the memory.
Status knock(int link, const KnockingSender& sender, int memory) {
  Knock knock = make_knock(sender);
  iovec part{&knock, sizeof knock};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PassingRoom room;
  pass_with(message, room, memory);
  if (::sendmsg(link, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return Error::last("datagrams: knock");
  return ok();
}

}  // namespace

Result<KernelSocket> find_receiver(const SocketAddress& source, const SocketAddress& destination, int network_of) {
  const auto receiver = udp_socket_by_kernel(source, destination, network_of);
  if (receiver && !is_own_uid(receiver->uid)) return Error{EACCES, "datagrams: another user's socket"};
  return receiver;
}

Result<std::unique_ptr<OutgoingRing>> OutgoingRing::open(const KernelSocket& receiver, const KnockingSender& sender) {
  auto link = reach_door(receiver);
  if (!link) return link.error();
  auto segment = make_segment(kUdSegmentBytes);
  if (!segment) return segment.error();
  if (Status known = knock(link->get(), sender, segment->memfd.get()); !known) return known.error();
  return std::unique_ptr<OutgoingRing>(new OutgoingRing(receiver, *std::move(link), std::move(segment->mapping)));
}

OutgoingRing::~OutgoingRing() { ring_.end(); }

/// A process that was killed closes nothing in the ring. So the receiver's link is looked at now and then. What it has
/// taken meanwhile proves nothing: another process may have its port a few milliseconds later.
bool OutgoingRing::is_there() {
  constexpr std::uint64_t kPatience = 1'000'000;  // ticks(): less than half a millisecond
  const std::uint64_t now = ticks();
  if (now - looked_at_ < kPatience && looked_at_ != 0) return true;
  looked_at_ = now;
  const int saved_errno = errno;
  char byte = 0;
  const ssize_t got = recv_at_once(link_.get(), &byte, sizeof byte, MSG_PEEK);
  const bool is = got < 0 && (errno == EAGAIN || errno == EINTR);  // the receiver never sends
  errno = saved_errno;
  return is;
}

/// Returns false when the receiver has gone.
bool OutgoingRing::ring_bell() const {
  const int saved_errno = errno;
  const char bell = 0;
  const bool is_there = send_at_once(link_.get(), &bell, sizeof bell, 0) >= 0 || errno == EAGAIN;
  errno = saved_errno;
  return is_there;
}

/// Gives a receiver that is at work the time to make room: it is at work as long as it takes something every 20 us.
void OutgoingRing::wait_for_room(std::size_t bytes) {
  constexpr int kRounds = 256;
  std::uint64_t taken = ring_.taken();
  for (int round = 0; !ring_.has_room(bytes) && round < kRounds; ++round) {
    cpu_relax();
    const std::uint64_t now = ring_.taken();
    if (std::exchange(taken, now) != now) round = 0;
  }
}

/// The receiver could not know which of both ways came first: until the mark has come to it all go by the kernel, which
/// may have lost it. Returns `done` once it has.
OutgoingRing::Put OutgoingRing::before_it_begins(std::uint32_t after_kernel) {
  constexpr std::uint32_t kDatagramsPerMark = 512;  // more than usually wait in a socket
  const std::uint32_t told = ring_.told_mark();
  if (told == 0) return Put::early;
  has_begun_ = told == static_cast<std::uint32_t>(mark_);
  if (has_begun_) return Put::done;
  return mark_ == 0 || after_kernel >= kDatagramsPerMark ? Put::marks : Put::early;
}

Place OutgoingRing::next_mark(Place last) const {
  const Place next = mark_behind(last);
  return ring_.told_mark() == static_cast<std::uint32_t>(next) ? mark_behind(next) : next;
}

OutgoingRing::Put OutgoingRing::put(std::uint32_t after_kernel, std::span<const iovec> parts, std::size_t bytes) {
  // The kernel tells by itself that a receiver has gone.
  if (has_begun_ && ring_.take_arming()) return Put::asleep;
  if (!is_there()) return Put::gone;
  if (!has_begun_) {
    const Put answer = before_it_begins(after_kernel);
    if (answer != Put::done) return answer;
  }
  if (ring_.take_arming()) return Put::asleep;
  wait_for_room(bytes);
  DatagramHeader header{};
  header.version = kDatagramVersion;
  header.imm_data = after_kernel;
  switch (ring_.put(header, parts, bytes)) {
    case UdRingWriter::Put::closed: return Put::gone;
    case UdRingWriter::Put::full: return Put::full;
    case UdRingWriter::Put::done: break;
  }
  if (ring_.must_ring() && !ring_bell()) return Put::gone;
  return ring_.was_missed() ? Put::gone : Put::done;
}

}  // namespace ringsock::soft
