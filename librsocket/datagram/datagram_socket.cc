#include "librsocket/datagram/datagram_socket.h"

#include <cerrno>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "core/runtime/fork_registry.h"
#include "librsocket/rsocket_process.h"

namespace ringsock::rs {

DatagramSocket::DatagramSocket(Process& process, int domain, int fd, UdpPort port)
    : Endpoint(Carries::datagrams),
      core_(process, domain, std::move(port), process.config.mem_default),
      intake_(core_),
      sender_(core_, intake_),
      options_(core_, *this, process.config),
      descriptor_(fd) {
  core_.describe(descriptor_);
  runtime::fork_registry().enter(*this);
}

DatagramSocket::~DatagramSocket() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
}

Status DatagramSocket::check_open() const { return core_.is_closed ? Status(Error{EBADF, "datagrams: closed"}) : ok(); }

/// Ends a section with the lock: other threads, which may sleep on the same descriptors, learn of datagrams that a look
/// in it has taken from there.
void DatagramSocket::unlock_and_tell(std::unique_lock<Mutex>& guard) {
  const bool has_come = intake_.take_news();
  guard.unlock();
  if (!has_come) return;
  note_activity(EPOLLIN);
  notify_watchers(EPOLLIN | EPOLLRDNORM);
}

/// As in the kernel, MSG_OOB means nothing.
Result<ssize_t> DatagramSocket::receive(msghdr& message, int flags) {
  if ((flags & MSG_ERRQUEUE) != 0) return Error{EAGAIN, "receive: error queue"};
  std::unique_lock guard(core_.lock);
  if (Status open = check_open(); !open) return open.error();
  if (core_.arrivals.empty()) {
    const bool may_wait = !is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
    may_wait ? intake_.look_while_waiting(monotonic_now()) : intake_.look(monotonic_now());
  }
  const auto received = take_oldest(message, flags);
  unlock_and_tell(guard);
  return received;
}

Result<ssize_t> DatagramSocket::take_oldest(msghdr& message, int flags) {
  if (const int error = core_.take_error(); error != 0) return Error{error, "receive: earlier"};
  if (core_.arrivals.empty() && core_.read_shut) return 0;
  if (core_.arrivals.empty()) return Error{EAGAIN, "receive"};
  const auto received = copy_out(core_.arrivals.front(), message, flags, core_.domain);
  if (!received || (flags & MSG_PEEK) != 0) return received;
  core_.statistics.count_received(core_.arrivals.front().bytes.size());
  intake_.drop_oldest();
  return received;
}

Result<ssize_t> DatagramSocket::send(const msghdr& message, int flags) {
  std::unique_lock guard(core_.lock);
  if (Status open = check_open(); !open) return open.error();
  const auto sent = sender_.send(message, flags, monotonic_now());
  unlock_and_tell(guard);
  return sent;
}

Result<int> DatagramSocket::unread_bytes() {
  std::unique_lock guard(core_.lock);
  if (Status open = check_open(); !open) return open.error();
  if (core_.arrivals.empty()) intake_.look(monotonic_now());
  const int bytes = core_.arrivals.empty() ? 0 : static_cast<int>(core_.arrivals.front().bytes.size());
  unlock_and_tell(guard);
  return bytes;
}

std::uint32_t DatagramSocket::events() {
  std::uint32_t out = core_.must_wait_to_send ? 0 : EPOLLOUT | EPOLLWRNORM;
  if (!core_.arrivals.empty() || core_.read_shut) out |= EPOLLIN | EPOLLRDNORM;
  if (core_.read_shut) out |= EPOLLRDHUP;
  if (core_.read_shut && core_.write_shut) out |= EPOLLHUP;
  if (core_.pending_error != 0) out |= EPOLLERR;
  return out;
}

std::uint32_t DatagramSocket::ready() noexcept try {
  std::unique_lock guard(core_.lock);
  if (core_.is_closed) return EPOLLERR | EPOLLHUP;
  core_.must_wait_to_send = !core_.has_room();
  intake_.look(monotonic_now());
  const std::uint32_t now = events();
  unlock_and_tell(guard);
  return now;
} catch (const std::bad_alloc&) {
  return EPOLLERR;
}

runtime::WaitFds DatagramSocket::arm() noexcept {
  const std::lock_guard guard(core_.lock);
  runtime::WaitFds fds;
  if (core_.is_closed) return fds;
  fds.fd[0] = core_.port.fd();
  fds.fd[1] = core_.arm_lanes();
  return fds;
}

void DatagramSocket::woken() noexcept {
  const std::lock_guard guard(core_.lock);
  core_.statistics.count_wakeup();
  for (const auto& lane : core_.lanes) lane->woken();
  intake_.look_everywhere_next();
}

/// No descriptor of arm() tells of room in the kernel's send buffer.
Nanos DatagramSocket::deadline() noexcept {
  constexpr Nanos kUntilRoom = std::chrono::milliseconds(1);
  const std::lock_guard guard(core_.lock);
  return core_.must_wait_to_send ? monotonic_now() + kUntilRoom : Nanos::max();
}

bool DatagramSocket::waits_for_our_cpus() const noexcept {
  return core_.works_on_our_cpus.load(std::memory_order_relaxed);
}

Status DatagramSocket::bind(const sockaddr* address, socklen_t length) {
  const std::lock_guard guard(core_.lock);
  if (Status open = check_open(); !open) return open;
  if (::bind(core_.port.fd(), address, length) != 0) return Error::last("rbind");
  core_.describe(descriptor_);
  return ok();
}

Status DatagramSocket::connect(const sockaddr* address, socklen_t length) {
  const std::lock_guard guard(core_.lock);
  if (Status open = check_open(); !open) return open;
  if (address != nullptr && length >= sizeof(sa_family_t) && address->sa_family == AF_UNSPEC) return disconnect();
  if (::connect(core_.port.fd(), address, length) != 0) return Error::last("rconnect");
  const auto peer = name_by(::getpeername, core_.port.fd(), "rconnect");
  if (!peer) return peer.error();
  core_.peer = peer->unmapped();
  if (const auto known = core_.peer_at(core_.peer); !known) {
    static_cast<void>(disconnect());
    return known.error();
  }
  core_.describe(descriptor_);
  return ok();
}

/// The kernel may give the socket another address and port afterwards.
Status DatagramSocket::disconnect() {
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (::connect(core_.port.fd(), &nobody, sizeof nobody) != 0) return Error::last("rconnect");
  core_.peer = SocketAddress();
  core_.peers.clear();
  core_.describe(descriptor_);
  return ok();
}

Status DatagramSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL, "rshutdown"};
  std::unique_lock guard(core_.lock);
  if (Status open = check_open(); !open) return open;
  // As in the kernel, also without a peer.
  core_.read_shut = core_.read_shut || how != SHUT_WR;
  core_.write_shut = core_.write_shut || how != SHUT_RD;
  const bool is_connected = core_.is_connected();
  guard.unlock();
  note_activity();
  notify_watchers();
  return is_connected ? ok() : Status(Error{ENOTCONN, "rshutdown"});
}

Result<SocketAddress> DatagramSocket::local_name() {
  const std::lock_guard guard(core_.lock);
  if (Status open = check_open(); !open) return open.error();
  return core_.port.name();
}

Result<SocketAddress> DatagramSocket::peer_name() {
  const std::lock_guard guard(core_.lock);
  if (Status open = check_open(); !open) return open.error();
  if (!core_.is_connected()) return Error{ENOTCONN, "rgetpeername"};
  return core_.domain == AF_INET6 ? core_.peer.mapped() : core_.peer;
}

void DatagramSocket::closed() noexcept {
  const std::lock_guard guard(core_.lock);
  core_.is_closed = true;
  core_.describe(-1);
  core_.peers.clear();
  core_.arrivals.clear();
  core_.pieces.clear();
  for (const auto& lane : core_.lanes) lane->finish_sends();
  core_.close_lanes();
  core_.port.close();
}

void DatagramSocket::add_fork_locks(runtime::ForkLocks& locks) {
  Endpoint::add_fork_locks(locks);
  locks.add_outer(core_.lock);
}

/// The child goes on with the kernel's socket, which both have, and a queue pair of its own, once it needs one.
void DatagramSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::child) core_.leave_to_parent();
  if (side != ForkSide::unprepared_child) return core_.note_heirs();
  // Another thread of the parent may have been changing these.
  new (&core_.lock) Mutex;
  new (&core_.peers) Peers;
  core_.elders.clear();
  new (&core_.arrivals) Arrivals(core_.process.config.mem_default);
  new (&core_.pieces) Pieces(core_.process.config.mem_default);
  core_.abandon_lanes();
  core_.note_heirs();
}

}  // namespace ringsock::rs
