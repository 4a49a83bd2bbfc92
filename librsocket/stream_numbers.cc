#include "librsocket/stream_numbers.h"

#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/own_duplicate.h"
#include "core/runtime/fd_table.h"
#include "librsocket/closing.h"
#include "librsocket/signal_owner.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

void StreamNumbers::closed() noexcept {
  core_.closed.store(true, std::memory_order_release);
  if (StreamApi* const api = core_.api()) api->end();
  socket_.stop_background();  // takes setup_lock: no thread begins to hand it on any more
  socket_.inheritance().handing_on.wait();
  if (end_connection()) finish_in_background(core_.endpoint);
}

/// Returns true when the connection must be kept until all bytes under way have arrived.
bool StreamNumbers::end_connection() noexcept {
  Clients clients;
  std::scoped_lock guard(core_.setup_lock, core_.send_lock);
  port_holder_.reset();
  const bool ends_here = socket_.inheritance().leave_family();
  if (core_.state() == State::listening) {
    clients = socket_.listener().take_clients();  // they see an abort
    core_.id.reset();
    core_.set_state(State::failed);
    return false;
  }
  core_.describe();
  if (!ends_here) let_go_silently();
  return ends_here && core_.is_connected() && disconnect();
}

/// Tells the peer. Returns end_connection()'s result.
bool StreamNumbers::disconnect() noexcept {
  socket_.transfer().corking().let_go();
  const bool is_abortive = socket_.options().lingers() && socket_.options().linger_seconds() == 0;
  const bool is_unread = leaves_bytes_unread();
  const ConnectionEnds& ends = core_.connection->ends();
  const bool is_over =
      ends.both_shut_down() || (ends.has_peer_ended() && core_.write_shut.load(std::memory_order_relaxed));
  const bool abort = (is_abortive && !is_over) || is_unread;
  const bool half_open = !core_.read_shut.exchange(true) || !core_.write_shut.load(std::memory_order_relaxed);
  core_.write_shut.store(true, std::memory_order_release);
  if (abort) {
    if (is_unread) core_.connection->tell_end(*core_.id, false);
    [[maybe_unused]] const Status reset = core_.id->disconnect();
    return false;
  }
  if (half_open) core_.disconnect();
  // A direct write that waits for the peer's help, and later messages, are still in this process.
  return core_.id->device().traits().works_in_background || socket_.direct().has_written();
}

/// Returns whether the connection must end by a reset, which tells the peer that its bytes were not read (RFC 2525,
/// 2.17). Only where a reset does not overtake bytes that were sent before.
bool StreamNumbers::leaves_bytes_unread() noexcept {
  if (core_.id->device().traits().works_in_background || socket_.direct().has_written() ||
      core_.connection->ends().peer_disconnected())
    return false;
  core_.connection->poll();
  return core_.connection->receiving().readable() > 0 && !core_.connection->ends().both_shut_down();
}

void StreamNumbers::descriptor_closed(int fd) noexcept {
  if (moves_to_other_number(fd)) core_.endpoint.notify_watchers();
}

/// Has the socket use another number than `fd`, which the caller closes, and which another thread may then get at once.
/// Returns whether there is another one: a thread that is about to sleep on `fd` must look again.
bool StreamNumbers::moves_to_other_number(int fd) noexcept {
  const std::lock_guard guard(core_.setup_lock);
  if (fd != core_.fd) return false;
  const int other = runtime::fd_table().number_of(core_.endpoint).value_or(-1);
  if (core_.connection_owns_fd.load(std::memory_order_relaxed)) {
    if (other < 0) return false;
    // A duplicate has its own flag, which is lost when the connection's descriptor takes its number.
    socket_.close_on_exec.store((::fcntl(other, F_GETFD) & FD_CLOEXEC) != 0);
    if (!core_.id->adopt_descriptor(other)) return false;
    ::fcntl(other, F_SETFD, FD_CLOEXEC);
  }
  core_.fd = other;
  return other >= 0;
}

void StreamNumbers::descriptor_vanished(int fd) noexcept {
  const std::scoped_lock guard(core_.setup_lock, core_.send_lock);
  if (!owns_descriptor(fd) || !core_.id) return;
  const auto other = runtime::fd_table().number_of(core_.endpoint);
  if (other && core_.id->adopt_descriptor(*other)) {
    core_.fd = *other;
  } else {
    let_go_silently();
  }
}

void StreamNumbers::give_up_descriptor() noexcept {
  std::lock_guard guard(core_.setup_lock);
  if (!core_.connection_owns_fd.load(std::memory_order_relaxed) || !core_.id) return;
  UniqueFd other = own_duplicate(core_.fd);
  // The number stays open until the caller has put another file there, so that no other thread gets it.
  if (!other || !core_.id->adopt_descriptor(other.get())) return;
  core_.fd = other.release();
  has_own_number_ = true;
}

void StreamNumbers::reset() noexcept {
  if (!core_.is_connected() || !socket_.inheritance().claim()) return;
  const std::scoped_lock guard(core_.setup_lock, core_.send_lock);
  core_.read_shut.store(true, std::memory_order_release);
  core_.write_shut.store(true, std::memory_order_release);
  [[maybe_unused]] const Status reset = core_.id->disconnect();
}

Nanos StreamNumbers::linger() noexcept {
  if (!socket_.options().lingers() || !core_.is_connected() || socket_.inheritance().is_shared()) return Nanos::zero();
  return std::chrono::seconds(socket_.options().linger_seconds());
}

bool StreamNumbers::is_drained() noexcept {
  if (!core_.is_connected() || !socket_.inheritance().claim()) return true;
  socket_.progress().poll();
  return core_.connection->requests().is_drained() || core_.connection->ends().failure() != 0;
}

void StreamNumbers::take_over_number() {
  if (!core_.id->device().traits().wakes_through_connection) return;
  // An accepted socket has the connection's descriptor from the start.
  if (core_.fd < 0) {
    core_.fd = core_.id->event_fd();
    core_.connection_owns_fd.store(true, std::memory_order_release);
  } else {
    take_number();
  }
}

/// Keeps a port that the application has chosen taken as long as the connection, if a descriptor is available.
void StreamNumbers::take_number() {
  if (holds_port_) port_holder_ = own_duplicate(core_.fd);
  std::optional<SignalOwner> owner;
  if (socket_.has_signal_owner.load()) owner = SignalOwner::of(core_.fd);
  if (core_.id->move_to_descriptor(core_.fd)) {
    core_.connection_owns_fd.store(true, std::memory_order_release);
    if (socket_.keeper.load() != 0) [[unlikely]]
      give_to_duplicates();
  }
  if (owner) owner->give_to(core_.fd);
}

/// Duplicates that were made before the connection are the kernel's socket, and would not keep the connection when the
/// first number is closed.
void StreamNumbers::give_to_duplicates() {
  runtime::fd_table().for_each([&](int fd, const runtime::Endpoint& one) {
    if (&one != &core_.endpoint || fd == core_.fd) return;
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0) ::dup3(core_.fd, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  });
}

std::vector<StreamNumbers::Number> StreamNumbers::all_numbers() const {
  std::vector<Number> numbers;
  runtime::fd_table().for_each([&](int fd, const runtime::Endpoint& one) {
    if (&one != &core_.endpoint) return;
    const bool closes = owns_descriptor(fd) ? socket_.close_on_exec.load() : (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
    numbers.push_back({fd, closes ? O_CLOEXEC : 0});
  });
  return numbers;
}

void StreamNumbers::go_on_as(int kernel_socket) {
  const auto turn = [kernel_socket](const std::vector<Number>& numbers) {
    for (const Number& number : numbers) {
      ::dup3(kernel_socket, number.fd, number.flags);
      runtime::fd_table().let_go(number.fd);
    }
  };
  const std::vector<Number> numbers = all_numbers();
  give_up_descriptor();  // the link keeps another number until it is closed
  turn(numbers);
  core_.endpoint.leave_to_kernel(numbers.empty() ? -1 : numbers.front().fd);
  // Duplicates that another thread has entered meanwhile. A thread that enters one from now on sees that the connection
  // has left, because the table has a lock.
  turn(all_numbers());
  core_.endpoint.retire();
}

void StreamNumbers::let_go_silently() noexcept {
  if (socket_.inheritance().is_half_made() || core_.state() == State::listening || !core_.id) return;
  const bool owned = core_.connection_owns_fd.exchange(false, std::memory_order_acq_rel);
  core_.id->abandon(owned);
  if (owned && has_own_number_) left_number_.reset(socket_.descriptor());
}

void StreamNumbers::end_unseen() noexcept {
  if (core_.closed.load(std::memory_order_relaxed) || !core_.id) return;
  // A child may have accepted and closed the connection, which waits in this process's queue, too.
  const bool was_used_elsewhere = socket_.inheritance().has_old_state();
  if (!socket_.inheritance().leave_family()) {
    core_.id->abandon(false);
  } else if (core_.is_connected() && was_used_elsewhere) {
    static_cast<void>(disconnect());
  } else if (core_.is_connected()) {
    [[maybe_unused]] const Status reset = core_.id->disconnect();
  }
}

}  // namespace ringsock::rs
