#include "preload/dual_socket.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/base/log.h"
#include "core/base/refusals.h"
#include "core/runtime/fd_table.h"
#include "librsocket/process.h"
#include "preload/offload.h"
#include "preload/real_calls.h"

namespace ringsock::preload {

using runtime::KernelReason;

namespace {

/// Returns whether the result of a connect means that the ring has not taken the connection, so that the kernel may.
bool is_refusal(const Status& connected) {
  if (connected) return false;
  const int code = connected.error().code;
  return code != EINPROGRESS && code != EALREADY && code != EISCONN && code != EBADF;
}

KernelReason reason_of(int connect_error) {
  switch (connect_error) {
    case ECONNREFUSED: return KernelReason::other_user;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG: return KernelReason::full;
    case ETIMEDOUT: return KernelReason::no_answer;
    default: return KernelReason::other;
  }
}

void count_by_kernel(KernelReason reason) {
  if (reason == KernelReason::no_answer) count_refusal(Refusal::patience);
  runtime::process_statistics.count_kernel_connected(reason);
}

}  // namespace

DualSocket::DualSocket(rs::Process& process, int domain, int fd) : StreamSocket(process, domain, fd) {
  have_other_way(std::chrono::milliseconds(process.config.connect_patience));
}

// -- which way -------------------------------------------------------------------------------------

/// Leaves the descriptors to the kernel. Not inside a read-side section, and not with an epoll set's lock held.
void DualSocket::leave() {
  way_.store(Way::kernel, std::memory_order_release);
  runtime::fd_table().let_go(descriptor());
  while (has_descriptors()) {
    const auto duplicate = runtime::fd_table().number_of(*this);
    if (!duplicate) break;
    runtime::fd_table().let_go(*duplicate);
  }
  leave_to_kernel();
}

void DualSocket::give_up_ring() {
  if (way() == Way::both) {
    stop_listening();
    set_kernel_nonblocking(descriptor(), is_nonblocking());
  }
  if (way() == Way::listener) set_kernel_nonblocking(descriptor(), is_nonblocking());
  end_migration();
  if (way() != Way::ring) leave();
}

/// Leaves a listener to the kernel after another process has ended its ring. That process has set O_NONBLOCK as it
/// knows it, so the flag is set again when this process's application polls the listener without blocking.
void DualSocket::leave_ended_ring() {
  stop_listening();
  if (is_nonblocking()) set_kernel_nonblocking(descriptor(), true);
  leave();
}

std::optional<KernelReason> DualSocket::reason_for_kernel(const sockaddr* address, socklen_t length) try {
  const auto destination = SocketAddress::from(address, length);
  if (!destination || destination->family() != domain() || destination->port() == 0) return KernelReason::other;
  if (!may_offload_address(domain(), *destination)) return KernelReason::rule;
  const SocketAddress plain = destination->unmapped();
  auto device = process().registry.choose(plain);
  if (!device) return KernelReason::no_device;
  destination_ = *destination;
  const bool by_tcp_first = is_fork_mode() && !(*device)->survives_fork();
  if (!by_tcp_first && !(*device)->may_have_listener(verbs::PortSpace::tcp, plain))
    return KernelReason::nobody_listened;
  if ((*device)->was_silent(verbs::PortSpace::tcp, plain)) return KernelReason::no_answer;
  return std::nullopt;
} catch (const std::bad_alloc&) {
  return KernelReason::full;
}

Status DualSocket::connect(const sockaddr* address, socklen_t length) {
  switch (way()) {
    case Way::both:
    case Way::listener: return Error{EISCONN, "connect: listening"};
    case Way::kernel: return connect_by_kernel(address, length, KernelReason::other);
    case Way::tcp:
      if (real.connect(descriptor(), address, length) != 0) return Error::last("connect");
      return ok();
    case Way::undecided:
      if (const auto reason = reason_for_kernel(address, length)) return connect_by_kernel(address, length, *reason);
      if (moves_in_fork_mode(destination_)) return connect_in_fork_mode(address, length);
      way_.store(Way::ring, std::memory_order_release);
      break;
    case Way::ring: break;
  }
  Status connected = connect_on_ring(address, length);
  if (!is_refusal(connected)) return connected;
  log_info("connect to %s: by the kernel, after %s: %s", destination_.to_string().c_str(), connected.error().where,
           std::strerror(connected.error().code));
  return connect_by_kernel(address, length, reason_of(connected.error().code));
}

Status DualSocket::connect_on_ring(const sockaddr* address, socklen_t length) try {
  return StreamSocket::connect(address, length);
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "connect"};
}

/// Blocks as the kernel socket does, whose O_NONBLOCK is the application's.
Status DualSocket::connect_by_kernel(const sockaddr* address, socklen_t length, KernelReason reason) {
  const int fd = descriptor();
  leave();
  const Status connected = real.connect(fd, address, length) == 0 ? ok() : Status(Error::last("connect"));
  if (connected || connected.error().code == EINPROGRESS) count_by_kernel(reason);
  return connected;
}

/// Connects by the kernel when a connect in the background has failed on the ring. The caller may hold locks, so the
/// descriptor stays in the table for now.
void DualSocket::fall_back_if_refused() noexcept {
  if (way() != Way::ring || !has_failed_to_connect() || is_closed()) return;
  Way expected = Way::ring;
  if (!way_.compare_exchange_strong(expected, Way::kernel)) return;
  set_kernel_nonblocking(descriptor(), true);
  count_by_kernel(reason_of(connect_error()));
  // SO_ERROR and poll(2) report its outcome.
  static_cast<void>(::connect(descriptor(), destination_.get(), destination_.length()));
  set_kernel_nonblocking(descriptor(), is_nonblocking());
  // Threads sleep on the ring's descriptor.
  notify_watchers();
}

// -- before connecting, and listening --------------------------------------------------------------

Status DualSocket::bind(const sockaddr* address, socklen_t length) {
  if (way() == Way::ring) return Error{EINVAL, "bind: connected"};
  if (real.bind(descriptor(), address, length) != 0) return Error::last("bind");
  hold_port();
  return ok();
}

Status DualSocket::listen(int backlog) {
  if (way() == Way::ring) return Error{EINVAL, "listen: connected"};
  const int fd = descriptor();
  if (way() == Way::both && refuses_clients()) {
    forget_listening();
    way_.store(Way::undecided, std::memory_order_release);
  }
  // The ring listens first: an rsocket client that saw only the kernel's listener would connect by the kernel. A socket
  // without a port gets one from the kernel's listen().
  Status on_ring = way() == Way::undecided ? listen_on_ring(backlog) : ok();
  if (real.listen(fd, backlog) != 0) {
    const Error error = Error::last("listen");
    if (way() != Way::undecided || !on_ring) return error;
    // An iWARP device's listener has the kernel's TCP port. The application gets the port without that device, and the
    // ring listens on the others.
    stop_listening();
    if (error.code != EADDRINUSE || real.listen(fd, backlog) != 0) return error;
    on_ring = listen_on_ring(backlog);
  }
  if (way() == Way::both) return StreamSocket::listen(backlog);
  if (way() == Way::kernel || way() == Way::listener) return ok();
  if (!on_ring && on_ring.error().code == EDESTADDRREQ) on_ring = listen_on_ring(backlog);
  if (!on_ring) {
    log_info("listen: by the kernel only: %s", on_ring.error().where);
    stop_listening();  // removes a listener that is half made
    if (is_fork_mode()) {
      set_kernel_nonblocking(fd, true);
      way_.store(Way::listener, std::memory_order_release);
    } else {
      leave();
    }
    return ok();
  }
  set_kernel_nonblocking(fd, true);
  way_.store(Way::both, std::memory_order_release);
  return ok();
}

Status DualSocket::listen_on_ring(int backlog) {
  const int fd = descriptor();
  const auto local = name_by(real.getsockname, fd, "getsockname");
  if (!local) return local.error();
  if (local->port() == 0) return Error{EDESTADDRREQ, "no port yet"};
  if (!may_offload_address(domain(), local->unmapped())) return Error{EPERM, "a rule"};
  if (Status bound = StreamSocket::bind(local->get(), local->length()); !bound) return bound;
  if (is_fork_mode() && !leave_unshareable_devices()) return Error{EOPNOTSUPP, "fork mode"};
  return StreamSocket::listen(backlog);
}

Result<int> DualSocket::accept(SocketAddress& peer, int flags) {
  if (way() == Way::both && has_ring_ended()) {
    if (auto waiting = accept_waiting(peer, flags); waiting || waiting.error().code != EAGAIN) return waiting;
    if (!has_half_open()) leave_ended_ring();
  }
  if (way() == Way::kernel) return accept_if_kernel_has_one(peer, flags);
  if (way() == Way::listener) return accept_from_kernel(peer, flags);
  if (way() != Way::both) return Error{EINVAL, "accept: not listening"};
  if (nobody_waits(descriptor())) return Error{EAGAIN, "accept"};
  // In turns, so that clients of one listener do not keep those of the other waiting.
  const bool kernel_first = kernel_first_.load(std::memory_order_relaxed);
  kernel_first_.store(!kernel_first, std::memory_order_relaxed);
  auto first = kernel_first ? accept_if_kernel_has_one(peer, flags) : StreamSocket::accept(peer, flags);
  if (first || first.error().code != EAGAIN) return first;
  return kernel_first ? StreamSocket::accept(peer, flags) : accept_if_kernel_has_one(peer, flags);
}

/// Accepts when poll(2) finds a client, or fails, as it does when RLIMIT_NOFILE is 0. poll(2) takes a tenth of the time
/// of an accept4(2) that finds nobody.
Result<int> DualSocket::accept_if_kernel_has_one(SocketAddress& peer, int flags) {
  pollfd queue{descriptor(), POLLIN, 0};
  if (::poll(&queue, 1, 0) == 0) return Error{EAGAIN, "accept"};
  return accept_from_kernel(peer, flags);
}

Result<int> DualSocket::accept_from_kernel(SocketAddress& peer, int flags) {
  if (is_closed()) return Error{EBADF, "accept: closed meanwhile"};
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  const int fd = ::accept4(descriptor(), reinterpret_cast<sockaddr*>(&storage), &length, flags);
  if (fd < 0) return Error::last("accept4");
  if (auto name = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length)) peer = *name;
  if (is_fork_mode() && way() != Way::kernel) {
    const auto local = name_by(real.getsockname, fd, "getsockname");
    if (local && may_offload_address(domain(), local->unmapped()) && moves_in_fork_mode(*local)) {
      return take_in_accepted(UniqueFd(fd), *local, flags);
    }
  }
  runtime::fd_table().drop_stale(fd);
  runtime::process_statistics.count_accepted(runtime::SocketPath::kernel);
  return fd;
}

Status DualSocket::shutdown(int how) {
  switch (way()) {
    case Way::ring: return StreamSocket::shutdown(how);
    case Way::both:
      if (Status shut = StreamSocket::shutdown(how); !shut) return shut;
      if (how != SHUT_WR) refuse_clients();
      [[fallthrough]];
    case Way::undecided:
    case Way::listener:
    case Way::tcp:
    case Way::kernel: break;
  }
  if (real.shutdown(descriptor(), how) != 0) return Error::last("shutdown");
  return ok();
}

// -- names, options, flags -------------------------------------------------------------------------

Result<SocketAddress> DualSocket::local_name() {
  return is_kernel_socket() ? name_by(real.getsockname, descriptor(), "getsockname") : StreamSocket::local_name();
}

Result<SocketAddress> DualSocket::peer_name() {
  return is_kernel_socket() ? name_by(real.getpeername, descriptor(), "getpeername") : StreamSocket::peer_name();
}

Status DualSocket::set_option(int level, int name, const void* value, socklen_t length) {
  if (!is_kernel_socket() || level == rs::kSolRdma) return StreamSocket::set_option(level, name, value, length);
  if (real.setsockopt(descriptor(), level, name, value, length) != 0) return Error::last("setsockopt");
  // The ring may refuse options that it has no use for.
  [[maybe_unused]] const Status repeated = StreamSocket::set_option(level, name, value, length);
  return ok();
}

Status DualSocket::get_option(int level, int name, void* value, socklen_t* length) {
  fall_back_if_refused();
  if (!is_kernel_socket() || level == rs::kSolRdma) return StreamSocket::get_option(level, name, value, length);
  const int fd = descriptor();
  if (way() == Way::kernel) leave();
  if (real.getsockopt(fd, level, name, value, length) != 0) return Error::last("getsockopt");
  return ok();
}

void DualSocket::set_status_flags(int flags) {
  set_nonblocking((flags & O_NONBLOCK) != 0);
  const Way now = way();
  const rs::FamilyRecord* const record = family();
  const bool has_strangers = record != nullptr && record->kernel_blocks.load(std::memory_order_acquire);
  const bool never_blocks = ((now == Way::both && !has_ring_ended()) || now == Way::listener) && !has_strangers;
  if (now != Way::ring) real.fcntl(descriptor(), F_SETFL, never_blocks ? flags | O_NONBLOCK : flags);
}

// -- bytes -----------------------------------------------------------------------------------------
// Calls that still hold this object after it has been left to the kernel use the kernel socket.

Result<ssize_t> DualSocket::receive(msghdr& message, int flags) {
  if (way() == Way::tcp) [[unlikely]] {
    if (Status moved = use_connection(); !moved) return moved.error();
  }
  if (way() != Way::kernel) [[likely]]
    return StreamSocket::receive(message, flags);
  const ssize_t got = ::recvmsg(descriptor(), &message, flags | MSG_DONTWAIT);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

Result<ssize_t> DualSocket::send(const msghdr& message, int flags) {
  if (way() == Way::tcp) [[unlikely]] {
    if (Status moved = use_connection(); !moved) return moved.error();
  }
  if (way() != Way::kernel) [[likely]]
    return StreamSocket::send(message, flags);
  const ssize_t sent = ::sendmsg(descriptor(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return Error::last("sendmsg");
  return sent;
}

// NOLINTBEGIN(bugprone-parent-virtual-call): StreamSocket's short cuts are for its own connection; any other way takes
// Endpoint's functions, which call receive() and send().
Result<ssize_t> DualSocket::receive_bytes(void* data, std::size_t length, int flags) {
  return way() == Way::ring ? StreamSocket::receive_bytes(data, length, flags)
                            : Endpoint::receive_bytes(data, length, flags);
}

Result<ssize_t> DualSocket::send_bytes(const void* data, std::size_t length, int flags) {
  return way() == Way::ring ? StreamSocket::send_bytes(data, length, flags) : Endpoint::send_bytes(data, length, flags);
}
// NOLINTEND(bugprone-parent-virtual-call)

// -- readiness -------------------------------------------------------------------------------------

std::uint32_t DualSocket::kernel_events() const noexcept {
  const int saved_errno = errno;
  pollfd entry{descriptor(), POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int ready = ::poll(&entry, 1, 0);
  errno = saved_errno;
  return ready > 0 ? static_cast<std::uint16_t>(entry.revents) : 0;
}

std::uint32_t DualSocket::ready() noexcept {
  switch (way()) {
    case Way::undecided: return StreamSocket::ready();
    case Way::both: return StreamSocket::ready() | kernel_events();
    case Way::tcp: return moving_events();
    case Way::listener:
    case Way::kernel: return kernel_events();
    case Way::ring: break;
  }
  const std::uint32_t events = StreamSocket::ready();
  if (!has_failed_to_connect()) [[likely]]
    return events;
  fall_back_if_refused();
  return way() == Way::kernel ? kernel_events() : events;
}

runtime::WaitFds DualSocket::arm() noexcept {
  switch (way()) {
    case Way::undecided:
    case Way::listener: return {{descriptor(), -1}};
    case Way::kernel: return {{kernel_edges_ ? kernel_edges_.get() : descriptor(), -1}};
    case Way::tcp: return arm_moving();
    case Way::ring: return StreamSocket::arm();
    case Way::both: break;
  }
  if (has_ring_ended()) return {{descriptor(), -1}};  // the ring's descriptor would stay readable
  runtime::WaitFds fds = StreamSocket::arm();
  fds.fd[0] = descriptor();
  if (fds.shared[1] >= 0) fds.shared[0] = descriptor();
  return fds;
}

void DualSocket::woken() noexcept {
  const Way now = way();
  if (now == Way::kernel || now == Way::tcp || now == Way::listener) {
    forget_edges();
    note_activity();
  } else {
    // Only this call reports a client of the kernel's listener.
    if (now == Way::both) note_activity();
    StreamSocket::woken();
  }
}

bool DualSocket::asks_kernel() const noexcept {
  const Way now = way();
  return now == Way::kernel || now == Way::tcp || now == Way::listener || StreamSocket::asks_kernel();
}

Nanos DualSocket::deadline() noexcept {
  return std::min(next_look_.load(std::memory_order_relaxed), StreamSocket::deadline());
}

void DualSocket::closed() noexcept {
  end_migration();
  StreamSocket::closed();
}

}  // namespace ringsock::preload
