#include "core/transports/chosen_socket.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/libc_calls.h"
#include "core/base/log.h"
#include "core/base/rare_calls.h"
#include "core/base/refusals.h"
#include "core/base/unique_fd.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/library_call.h"

namespace ringsock::transports {

using runtime::KernelReason;

namespace {

/// Returns whether the result of a connect means that the way has not taken the connection, so that the kernel may.
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

/// A new network namespace has its loopback interface down. The kernel then says that the network is unreachable.
bool is_loopback_down(int fd) {
  if (!is_permitted(RareCall::interface_flags)) return false;
  ifreq interface {};
  std::strcpy(interface.ifr_name, "lo");
  const int saved_errno = errno;
  const bool is_down = ::ioctl(fd, SIOCGIFFLAGS, &interface) == 0 && (interface.ifr_flags & IFF_UP) == 0;
  errno = saved_errno;
  return is_down;
}

bool is_table_full(const Error& error) { return error.code == EMFILE || error.code == ENFILE; }

/// Returns whether the program may miss the few descriptors of a listener, for which there are no numbers above its
/// own.
bool is_table_small() {
  constexpr rlim_t kSmall = 256;
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max <= kSmall;
}

void count_by_kernel(KernelReason reason) {
  if (reason == KernelReason::no_answer) count_refusal(Refusal::patience);
  runtime::process_statistics.count_kernel_connected(reason);
}

/// Connects for the application: a call that blocks can be cancelled, which the wrapped connect() cannot.
Status connect_as_application(int fd, const sockaddr* address, socklen_t length) {
  const runtime::OutsideLibrary waiting_in_kernel;
  if (libc_calls.connect(fd, address, length) != 0) return Error::last("connect");
  return ok();
}

}  // namespace

void set_kernel_nonblocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL, 0);
  if (flags >= 0) ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

ChosenSocket::ChosenSocket(const WayMaker& maker, int domain, int fd)
    : maker_(maker), domain_(domain), way_(maker.make_way(*this, domain, fd)), by_way_(way_->roles()) {
  mover_ = maker.make_mover(*this, *way_);
  runtime::fork_registry().enter(*this);
}

// -- which way -------------------------------------------------------------------------------------

/// Leaves the descriptors to the kernel. Not inside a read-side section, and not with an epoll set's lock held.
void ChosenSocket::leave() {
  set_state(State::kernel);
  if (has_left_to_kernel()) return;  // the number may be another file's by now
  runtime::fd_table().let_go(descriptor());
  while (has_descriptors()) {
    const auto duplicate = runtime::fd_table().number_of(*this);
    if (!duplicate) break;
    runtime::fd_table().let_go(*duplicate);
  }
  leave_to_kernel();
}

void ChosenSocket::give_up_way() {
  if (state() == State::both) {
    stop_listening_by_way();
    set_kernel_nonblocking(descriptor(), is_nonblocking());
  }
  if (state() == State::listener) set_kernel_nonblocking(descriptor(), is_nonblocking());
  if (mover_) mover_->end();
  if (state() != State::on_way) leave();
}

/// Leaves a listener to the kernel after another process has ended it for the way. That process has set O_NONBLOCK as
/// it knows it, so the flag is set again when this process's application polls the listener without blocking.
void ChosenSocket::leave_ended_listener() {
  stop_listening_by_way();
  if (is_nonblocking()) set_kernel_nonblocking(descriptor(), true);
  leave();
}

std::optional<KernelReason> ChosenSocket::reason_for_kernel(const sockaddr* address, socklen_t length) try {
  const auto destination = SocketAddress::from(address, length);
  if (!destination || destination->family() != domain_ || destination->port() == 0) return KernelReason::other;
  if (!maker_.permits(domain_, *destination)) return KernelReason::rule;
  if (destination->is_loopback() && is_loopback_down(descriptor())) return KernelReason::other;
  destination_ = *destination;
  return way_->why_not_to(destination->unmapped(), mover_ != nullptr);
} catch (const std::bad_alloc&) {
  return KernelReason::full;
}

Status ChosenSocket::connect(const sockaddr* address, socklen_t length) {
  switch (state()) {
    case State::both:
    case State::listener: return Error{EISCONN, "connect: listening"};
    case State::kernel: return connect_by_kernel(address, length, KernelReason::other);
    case State::moving: return connect_as_application(descriptor(), address, length);
    case State::undecided:
      if (const auto reason = reason_for_kernel(address, length)) return connect_by_kernel(address, length, *reason);
      if (mover_ && mover_->concerns(destination_)) return connect_by_kernel_first(address, length);
      set_state(State::on_way);
      break;
    case State::on_way: break;
  }
  Status connected = connect_by_way(address, length);
  if (!is_refusal(connected)) return connected;
  log_info("connect to %s: by the kernel, after %s: %s", destination_.to_string().c_str(), connected.error().where,
           std::strerror(connected.error().code));
  return connect_by_kernel(address, length, reason_of(connected.error().code));
}

Status ChosenSocket::connect_by_way(const sockaddr* address, socklen_t length) try {
  return by_way_.setup.connect(address, length);
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "connect"};
}

/// Blocks as the kernel socket does, whose O_NONBLOCK is the application's.
Status ChosenSocket::connect_by_kernel(const sockaddr* address, socklen_t length, KernelReason reason) {
  const int fd = descriptor();
  leave();
  const Status connected = connect_as_application(fd, address, length);
  if (connected || connected.error().code == EINPROGRESS) count_by_kernel(reason);
  return connected;
}

Status ChosenSocket::connect_by_kernel_first(const sockaddr* address, socklen_t length) {
  const Status connected = connect_as_application(descriptor(), address, length);
  if (!connected && connected.error().code != EINPROGRESS) return connected;
  mover_->begin(Mover::End::connecting, destination_);
  return connected;
}

/// Connects by the kernel when a connect in the background has failed on the way. The caller may hold locks, so the
/// descriptor stays in the table for now.
void ChosenSocket::fall_back_if_refused() noexcept {
  if (state() != State::on_way || !way_->has_failed_to_connect() || is_closed()) return;
  State expected = State::on_way;
  if (!state_.compare_exchange_strong(expected, State::kernel)) return;
  set_kernel_nonblocking(descriptor(), true);
  count_by_kernel(reason_of(way_->connect_error()));
  // SO_ERROR and poll(2) report its outcome.
  static_cast<void>(::connect(descriptor(), destination_.get(), destination_.length()));
  set_kernel_nonblocking(descriptor(), is_nonblocking());
  // Threads sleep on the way's descriptor.
  notify_watchers();
}

// -- before connecting, and listening --------------------------------------------------------------

Status ChosenSocket::bind(const sockaddr* address, socklen_t length) {
  if (state() == State::on_way) return Error{EINVAL, "bind: connected"};
  if (::bind(descriptor(), address, length) != 0) return Error::last("bind");
  way_->hold_port();
  return ok();
}

Status ChosenSocket::listen(int backlog) {
  if (state() == State::on_way) return Error{EINVAL, "listen: connected"};
  const int fd = descriptor();
  if (state() == State::both && way_->listening()->refuses_clients()) {
    way_->listening()->forget_listening();
    set_state(State::undecided);
  }
  // The way listens first: a client of the way that saw only the kernel's listener would connect by the kernel. A
  // socket without a port gets one from the kernel's listen().
  Status by_way = state() == State::undecided ? listen_by_way(backlog) : ok();
  if (::listen(fd, backlog) != 0) {
    const Error error = Error::last("listen");
    if (state() != State::undecided || !by_way) return error;
    // An iWARP device's listener has the kernel's TCP port. The application gets the port without that device, and the
    // way listens on the others.
    stop_listening_by_way();
    if (error.code != EADDRINUSE || ::listen(fd, backlog) != 0) return error;
    by_way = listen_by_way(backlog);
  }
  if (state() == State::both) return by_way_.setup.listen(backlog);
  if (state() == State::kernel || state() == State::listener) return ok();
  if (!by_way && by_way.error().code == EDESTADDRREQ) by_way = listen_by_way(backlog);
  if (!by_way) {
    log_info("listen: by the kernel only: %s", by_way.error().where);
    stop_listening_by_way();  // removes a listener that is half made
    if (mover_) {
      set_kernel_nonblocking(fd, true);
      set_state(State::listener);
    } else {
      leave();
    }
    return ok();
  }
  set_kernel_nonblocking(fd, true);
  set_state(State::both);
  return ok();
}

Status ChosenSocket::listen_by_way(int backlog) {
  if (way_->listening() == nullptr) return Error{EOPNOTSUPP, "the way does not listen"};
  const auto local = name_by(::getsockname, descriptor(), "getsockname");
  if (!local) return local.error();
  if (local->port() == 0) return Error{EDESTADDRREQ, "no port yet"};
  if (!maker_.permits(domain_, local->unmapped())) return Error{EPERM, "a rule"};
  if (Status bound = by_way_.setup.bind(local->get(), local->length()); !bound) return bound;
  if (mover_ && !mover_->may_listen()) return Error{EOPNOTSUPP, "fork mode"};
  return by_way_.setup.listen(backlog);
}

void ChosenSocket::stop_listening_by_way() {
  if (Listening* const listening = way_->listening()) listening->stop_listening();
}

Result<int> ChosenSocket::accept(SocketAddress& peer, int flags) {
  if (state() == State::both && way_->listening()->has_ended_for_all()) {
    auto waiting = way_->listening()->accept_waiting(peer, flags);
    if (waiting || waiting.error().code != EAGAIN) return waiting;
    if (!way_->listening()->has_half_open()) leave_ended_listener();
  }
  if (state() == State::kernel) return accept_if_kernel_has_one(peer, flags);
  if (state() == State::listener) return accept_from_kernel(peer, flags);
  if (state() != State::both) return Error{EINVAL, "accept: not listening"};
  if (way_->listening()->nobody_waits(descriptor())) return Error{EAGAIN, "accept"};
  // In turns, so that clients of one listener do not keep those of the other waiting. A client that has its descriptor
  // already is there also when the table is full.
  const bool kernel_first = kernel_first_.load(std::memory_order_relaxed);
  kernel_first_.store(!kernel_first, std::memory_order_relaxed);
  const auto ask = [&](bool kernel) {
    return kernel ? accept_if_kernel_has_one(peer, flags) : by_way_.setup.accept(peer, flags);
  };
  auto client = ask(kernel_first);
  if (!client && (client.error().code == EAGAIN || is_table_full(client.error()))) {
    auto second = ask(!kernel_first);
    if (second || second.error().code != EAGAIN) client = second;
  }
  if (client || !is_table_full(client.error()) || !is_table_small()) return client;
  log_info("accept: by the kernel only, which leaves the descriptors of the listener to the program");
  give_up_way();
  return accept_if_kernel_has_one(peer, flags);
}

/// Accepts when poll(2) finds a client, or fails, as it does when RLIMIT_NOFILE is 0. poll(2) takes a tenth of the time
/// of an accept4(2) that finds nobody.
Result<int> ChosenSocket::accept_if_kernel_has_one(SocketAddress& peer, int flags) {
  pollfd queue{descriptor(), POLLIN, 0};
  if (::poll(&queue, 1, 0) == 0) return Error{EAGAIN, "accept"};
  return accept_from_kernel(peer, flags);
}

Result<int> ChosenSocket::accept_from_kernel(SocketAddress& peer, int flags) {
  if (is_closed()) return Error{EBADF, "accept: closed meanwhile"};
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  const int fd = ::accept4(descriptor(), reinterpret_cast<sockaddr*>(&storage), &length, flags);
  if (fd < 0) return Error::last("accept4");
  if (auto name = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length)) peer = *name;
  if (mover_ && state() != State::kernel) {
    const auto local = name_by(::getsockname, fd, "getsockname");
    if (local && maker_.permits(domain_, local->unmapped()) && mover_->concerns(*local)) {
      return take_in_accepted(UniqueFd(fd), *local, flags);
    }
  }
  runtime::fd_table().drop_stale(fd);
  runtime::process_statistics.count_accepted(runtime::SocketPath::kernel);
  return fd;
}

/// Makes an endpoint of the accepted connection `fd`, which moves to the way when it is used. This is its listener.
Result<int> ChosenSocket::take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags) {
  auto* const accepted = new ChosenSocket(maker_, domain_, fd.get());
  runtime::Ref owner(accepted);
  accepted->way_->inherit_options(*way_);
  accepted->way_->close_on_exec.store((flags & SOCK_CLOEXEC) != 0);
  accepted->set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  accepted->mover_->begin(Mover::End::accepting, local.unmapped());
  if (Status entered = runtime::fd_table().insert(fd.get(), std::move(owner)); !entered) return entered.error();
  return fd.release();
}

Status ChosenSocket::shutdown(int how) {
  switch (state()) {
    case State::on_way: return by_way_.setup.shutdown(how);
    case State::both:
      if (Status shut = by_way_.setup.shutdown(how); !shut) return shut;
      if (how != SHUT_WR) way_->listening()->refuse_clients();
      [[fallthrough]];
    case State::undecided:
    case State::listener:
    case State::moving:
    case State::kernel: break;
  }
  if (::shutdown(descriptor(), how) != 0) return Error::last("shutdown");
  return ok();
}

// -- names, options, flags -------------------------------------------------------------------------

Result<SocketAddress> ChosenSocket::local_name() {
  return is_kernel_socket() ? name_by(::getsockname, descriptor(), "getsockname") : by_way_.setup.local_name();
}

Result<SocketAddress> ChosenSocket::peer_name() {
  return is_kernel_socket() ? name_by(::getpeername, descriptor(), "getpeername") : by_way_.setup.peer_name();
}

Status ChosenSocket::set_option(int level, int name, const void* value, socklen_t length) {
  if (!is_kernel_socket() || way_->has_option_level(level)) return by_way_.setup.set_option(level, name, value, length);
  if (::setsockopt(descriptor(), level, name, value, length) != 0) return Error::last("setsockopt");
  // The way may refuse options that it has no use for.
  [[maybe_unused]] const Status repeated = by_way_.setup.set_option(level, name, value, length);
  return ok();
}

Status ChosenSocket::get_option(int level, int name, void* value, socklen_t* length) {
  fall_back_if_refused();
  if (!is_kernel_socket() || way_->has_option_level(level)) return by_way_.setup.get_option(level, name, value, length);
  const int fd = descriptor();
  if (state() == State::kernel) leave();
  if (::getsockopt(fd, level, name, value, length) != 0) return Error::last("getsockopt");
  return ok();
}

void ChosenSocket::set_status_flags(int flags) {
  set_nonblocking((flags & O_NONBLOCK) != 0);
  const State now = state();
  const Listening* const listening = way_->listening();
  const bool is_strangers_too = listening != nullptr && listening->is_strangers_too();
  const bool ring_listens = now == State::both && listening != nullptr && !listening->has_ended_for_all();
  const bool never_blocks = (ring_listens || now == State::listener) && !is_strangers_too;
  if (now != State::on_way) ::fcntl(descriptor(), F_SETFL, never_blocks ? flags | O_NONBLOCK : flags);
}

// -- bytes -----------------------------------------------------------------------------------------
// Calls that still hold this object after it has been left to the kernel use the kernel socket.

Result<ssize_t> ChosenSocket::receive(msghdr& message, int flags) {
  if (state() == State::moving) [[unlikely]] {
    if (Status moved = mover_->use(); !moved) return moved.error();
  }
  if (state() != State::kernel) [[likely]]
    return by_way_.transfer.receive(message, flags);
  const ssize_t got = ::recvmsg(descriptor(), &message, flags | MSG_DONTWAIT);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

Result<ssize_t> ChosenSocket::send(const msghdr& message, int flags) {
  if (state() == State::moving) [[unlikely]] {
    if (Status moved = mover_->use(); !moved) return moved.error();
  }
  if (state() != State::kernel) [[likely]]
    return by_way_.transfer.send(message, flags);
  const ssize_t sent = ::sendmsg(descriptor(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return Error::last("sendmsg");
  return sent;
}

// The way's short cuts are for its own connection; in any other state the functions of Transfer call receive() and
// send().

Result<ssize_t> ChosenSocket::receive_bytes(void* data, std::size_t length, int flags) {
  if (state() == State::on_way) [[likely]]
    return by_way_.transfer.receive_bytes(data, length, flags);
  return Transfer::receive_bytes(data, length, flags);
}

Result<ssize_t> ChosenSocket::send_bytes(const void* data, std::size_t length, int flags) {
  if (state() == State::on_way) [[likely]]
    return by_way_.transfer.send_bytes(data, length, flags);
  return Transfer::send_bytes(data, length, flags);
}

// -- readiness -------------------------------------------------------------------------------------

std::uint32_t ChosenSocket::kernel_events() const noexcept {
  const int saved_errno = errno;
  pollfd entry{descriptor(), POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int ready = ::poll(&entry, 1, 0);
  errno = saved_errno;
  return ready > 0 ? static_cast<std::uint16_t>(entry.revents) : 0;
}

std::uint32_t ChosenSocket::ready() noexcept {
  switch (state()) {
    case State::undecided: return by_way_.readiness.ready();
    case State::both: return by_way_.readiness.ready() | kernel_events();
    case State::moving: return mover_->events(kernel_events());
    case State::listener:
    case State::kernel: return kernel_events();
    case State::on_way: break;
  }
  const std::uint32_t events = by_way_.readiness.ready();
  if ((events & EPOLLHUP) == 0) [[likely]]
    return events;
  fall_back_if_refused();
  return state() == State::kernel ? kernel_events() : events;
}

runtime::WaitFds ChosenSocket::arm() noexcept {
  switch (state()) {
    case State::undecided:
    case State::listener: return {{descriptor(), -1}};
    case State::kernel: {
      const int edges = mover_ ? mover_->edges() : -1;
      return {{edges >= 0 ? edges : descriptor(), -1}};
    }
    case State::moving: return mover_->arm();
    case State::on_way: return by_way_.readiness.arm();
    case State::both: break;
  }
  if (way_->listening()->has_ended_for_all()) return {{descriptor(), -1}};  // the way's descriptor would stay readable
  runtime::WaitFds fds = by_way_.readiness.arm();
  fds.fd[0] = descriptor();
  if (fds.shared[1] >= 0) fds.shared[0] = descriptor();
  return fds;
}

void ChosenSocket::woken() noexcept {
  const State now = state();
  if (now == State::kernel || now == State::moving || now == State::listener) {
    if (mover_) mover_->woken();
    note_activity();
  } else {
    // Only this call reports a client of the kernel's listener.
    if (now == State::both) note_activity();
    by_way_.readiness.woken();
  }
}

bool ChosenSocket::asks_kernel() const noexcept {
  const State now = state();
  return now == State::kernel || now == State::moving || now == State::listener || by_way_.readiness.asks_kernel();
}

Nanos ChosenSocket::deadline() noexcept {
  return mover_ ? std::min(mover_->deadline(), by_way_.readiness.deadline()) : by_way_.readiness.deadline();
}

// -- life ------------------------------------------------------------------------------------------

void ChosenSocket::closed() noexcept {
  if (mover_) mover_->end();
  by_way_.descriptors.closed();
}

void ChosenSocket::add_fork_locks(runtime::ForkLocks& locks) {
  if (mover_) mover_->add_fork_locks(locks);
  by_way_.process_life.add_fork_locks(locks);
  Endpoint::add_fork_locks(locks);
}

void ChosenSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  by_way_.process_life.after_fork(side);
  if (mover_) mover_->after_fork(side);
}

}  // namespace ringsock::transports
