#include "core/transports/chosen_socket.h"

#include <fcntl.h>

#include <algorithm>

#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/leaving.h"
#include "core/runtime/used_elsewhere.h"
#include "core/transports/kernel_calls.h"

namespace ringsock::transports {

namespace {

/// Returns whether a connection by a way has the port that the kernel socket, which has none, asks for.
bool asks_for_unseen_port(const WayMaker& maker, int fd, const sockaddr* address, socklen_t length) {
  const auto wanted = SocketAddress::from(address, length);
  if (!wanted || wanted->port() == 0 || !maker.has_port_unseen(*wanted)) return false;
  const auto held = name_by(::getsockname, fd, "getsockname");
  return held && held->port() == 0;
}

}  // namespace

ChosenSocket::ChosenSocket(const WayMaker& maker, int domain, int fd)
    : maker_(maker),
      domain_(domain),
      listening_(*this),
      connecting_(*this),
      way_(maker.make_way(*this, domain, fd)),
      by_way_(way_->roles()) {
  mover_ = maker.make_mover(*this, *way_);
  runtime::fork_registry().enter(*this);
}

// -- which way -------------------------------------------------------------------------------------

/// Leaves the descriptors to the kernel. Not inside a read-side section, and not with an epoll set's lock held.
void ChosenSocket::leave() {
  if (was_forked_undecided() && way_->listening() != nullptr) {
    // This process may take clients of the kernel's listener, and must leave none waiting at the way's.
    way_->listening()->end_for_all();
    // The process that listens by the way has set O_NONBLOCK of the socket that all have.
    set_kernel_nonblocking(descriptor(), is_nonblocking());
  }
  choice_.set(State::kernel);
  runtime::leave_descriptors(*this, descriptor());
}

void ChosenSocket::give_up_way() {
  if (state() == State::both) {
    listening_.stop_by_way();
    set_kernel_nonblocking(descriptor(), is_nonblocking());
  }
  if (state() == State::listener) set_kernel_nonblocking(descriptor(), is_nonblocking());
  if (mover_) mover_->end();
  if (state() != State::on_way) leave();
}

/// Returns whether other processes have the socket since it was undecided. They have the kernel's socket, but could not
/// get at a connection or a listener of the way.
bool ChosenSocket::is_left_to_family() noexcept { return was_forked_undecided() && !by_way_.process_life.is_alone(); }

// -- before connecting, and its end ----------------------------------------------------------------

Status ChosenSocket::bind(const sockaddr* address, socklen_t length) {
  if (state() == State::on_way) return Error{EINVAL, "bind: connected"};
  if (asks_for_unseen_port(maker_, descriptor(), address, length))
    return Error{EADDRINUSE, "bind: a ring's connection has the port"};
  if (::bind(descriptor(), address, length) != 0) return Error::last("bind");
  way_->hold_port();
  return ok();
}

Status ChosenSocket::shutdown(int how) {
  const int fd = descriptor();
  switch (state()) {
    case State::on_way: {
      const Status shut = by_way_.setup.shutdown(how);
      if (shut || !connecting_.fall_back_if_refused()) return shut;
      leave();
      break;
    }
    case State::both:
      if (Status shut = by_way_.setup.shutdown(how); !shut) return shut;
      if (how == SHUT_WR) break;
      if (values.is_shared()) {
        way_->listening()->end_for_all();
        set_kernel_nonblocking(fd, is_nonblocking());  // the others have the kernel's listener from now on
      }
      way_->listening()->refuse_clients();
      [[fallthrough]];
    case State::listener:
    case State::moving:
    case State::kernel: break;
    case State::undecided: leave();  // the kernel remembers it for a later connect(2)
  }
  if (::shutdown(fd, how) != 0) return Error::last("shutdown");
  return ok();
}

// -- names, options, flags -------------------------------------------------------------------------

Result<SocketAddress> ChosenSocket::local_name() {
  return is_kernel_socket() ? name_by(::getsockname, descriptor(), "getsockname") : by_way_.setup.local_name();
}

Result<SocketAddress> ChosenSocket::peer_name() {
  if (is_connecting_by_way()) static_cast<void>(ready());
  return is_kernel_socket() ? name_by(::getpeername, descriptor(), "getpeername") : by_way_.setup.peer_name();
}

Status ChosenSocket::set_option(int level, int name, const void* value, socklen_t length) {
  if (!is_kernel_socket() || way_->has_own_option(level, name))
    return by_way_.setup.set_option(level, name, value, length);
  if (::setsockopt(descriptor(), level, name, value, length) != 0) return Error::last("setsockopt");
  if (!is_ways_option(level, name))
    way_->kept_options.keep(level, name, value, length, KeptOptions::Time::before_connection);
  // The way may refuse options that it has no use for.
  [[maybe_unused]] const Status repeated = by_way_.setup.set_option(level, name, value, length);
  return ok();
}

Status ChosenSocket::get_option(int level, int name, void* value, socklen_t* length) {
  // Asking the way for its error would end a connect that the kernel goes on with.
  if (is_connecting_by_way()) static_cast<void>(ready());
  connecting_.fall_back_if_refused();
  if (!is_kernel_socket() || way_->has_own_option(level, name))
    return by_way_.setup.get_option(level, name, value, length);
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
// Calls that still hold this object after it has been left to the kernel use the kernel socket. So do those that find
// that the way has refused the connection.

Result<ssize_t> ChosenSocket::receive(msghdr& message, int flags) {
  if (state() == State::moving) [[unlikely]] {
    if (Status moved = mover_->use(); !moved) return moved.error();
  }
  if (was_forked_undecided()) [[unlikely]]
    return kAskKernel;
  if (state() != State::kernel) [[likely]] {
    auto got = by_way_.transfer.receive(message, flags);
    if (got || !connecting_.fall_back_if_refused()) [[likely]]
      return got;
  }
  const ssize_t got = ::recvmsg(descriptor(), &message, flags | MSG_DONTWAIT);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

Result<ssize_t> ChosenSocket::send(const msghdr& message, int flags) {
  if (state() == State::moving) [[unlikely]] {
    if (Status moved = mover_->use(); !moved) return moved.error();
  }
  if (was_forked_undecided()) [[unlikely]]
    return kAskKernel;
  if (state() != State::kernel) [[likely]] {
    auto sent = by_way_.transfer.send(message, flags);
    if (sent || !connecting_.fall_back_if_refused()) [[likely]]
      return sent;
  }
  const ssize_t sent = ::sendmsg(descriptor(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return Error::last("sendmsg");
  return sent;
}

// The way's short cuts are for its own connection; in any other state the functions of Transfer call receive() and
// send().

Result<ssize_t> ChosenSocket::receive_bytes(void* data, std::size_t length, int flags) {
  if (state() == State::on_way) [[likely]] {
    auto got = by_way_.transfer.receive_bytes(data, length, flags);
    if (got || !connecting_.fall_back_if_refused()) [[likely]]
      return got;
  }
  return Transfer::receive_bytes(data, length, flags);
}

Result<ssize_t> ChosenSocket::send_bytes(const void* data, std::size_t length, int flags) {
  if (state() == State::on_way) [[likely]] {
    auto sent = by_way_.transfer.send_bytes(data, length, flags);
    if (sent || !connecting_.fall_back_if_refused()) [[likely]]
      return sent;
  }
  return Transfer::send_bytes(data, length, flags);
}

Result<ssize_t> ChosenSocket::receive_by(runtime::BytesTaker& taker, std::span<std::byte> room, int flags) {
  if (state() == State::on_way) {
    auto got = by_way_.transfer.receive_by(taker, room, flags);
    if (got || !connecting_.fall_back_if_refused()) return got;
  }
  return Transfer::receive_by(taker, room, flags);
}

// -- readiness -------------------------------------------------------------------------------------

std::uint32_t ChosenSocket::ready() noexcept {
  switch (state()) {
    case State::undecided:
      if (!was_forked_undecided()) return by_way_.readiness.ready();
      return is_in_use(descriptor()) ? EPOLLHUP | runtime::kUsedElsewhere : kernel_events(descriptor());
    case State::both: {
      const std::uint32_t events = by_way_.readiness.ready();
      // After shutdown(2) only the kernel's listener is left.
      return ((events & EPOLLHUP) != 0 ? 0 : events) | kernel_events(descriptor());
    }
    case State::moving: return mover_->events(kernel_events(descriptor()));
    case State::listener:
    case State::kernel: return kernel_events(descriptor());
    case State::on_way: break;
  }
  const std::uint32_t events = by_way_.readiness.ready();
  if ((events & EPOLLHUP) == 0) [[likely]]
    return events;
  connecting_.fall_back_if_refused();
  return state() == State::kernel ? kernel_events(descriptor()) : events;
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
  return now == State::kernel || now == State::moving || now == State::listener || was_forked_undecided() ||
         by_way_.readiness.asks_kernel();
}

Nanos ChosenSocket::deadline() noexcept {
  return mover_ ? std::min(mover_->deadline(), by_way_.readiness.deadline()) : by_way_.readiness.deadline();
}

// -- life ------------------------------------------------------------------------------------------

void ChosenSocket::closed() noexcept {
  if (mover_) mover_->end();
  if (state() == State::on_way) connecting_.note_end();
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
