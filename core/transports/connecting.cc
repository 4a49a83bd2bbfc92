#include "core/transports/connecting.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/refusals.h"
#include "core/transports/chosen_socket.h"
#include "core/transports/kernel_calls.h"

namespace ringsock::transports {

using runtime::KernelReason;

namespace {

using State = Choice::State;

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

void count_by_kernel(KernelReason reason) {
  if (reason == KernelReason::no_answer) count_refusal(Refusal::patience);
  runtime::process_statistics.count_kernel_connected(reason);
}

}  // namespace

std::optional<KernelReason> Connecting::reason_for_kernel(const sockaddr* address, socklen_t length) try {
  const auto destination = SocketAddress::from(address, length);
  if (!destination || destination->family() != socket_.domain_ || destination->port() == 0) return KernelReason::other;
  if (!socket_.maker_.permits(socket_.domain_, *destination, config::VmaRole::tcp_client)) return KernelReason::rule;
  destination_ = *destination;
  if (are_still_kernels()) return KernelReason::short_lived;
  if (destination->is_loopback() && is_loopback_down(socket_.descriptor())) return KernelReason::other;
  if (const auto why_not = socket_.way_->why_not_to(destination->unmapped(), socket_.mover_ != nullptr)) return why_not;
  if (is_short_and_kernels()) return KernelReason::short_lived;
  return std::nullopt;
} catch (const std::bad_alloc&) {
  return KernelReason::full;
}

ShortConnections* Connecting::short_connections() const {
  return socket_.mover_ ? nullptr : socket_.maker_.short_connections();
}

bool Connecting::are_still_kernels() const noexcept {
  ShortConnections* const known = short_connections();
  return known != nullptr && known->are_still_kernels(destination_, socket_.descriptor(), monotonic_now());
}

bool Connecting::is_short_and_kernels() const noexcept {
  ShortConnections* const known = short_connections();
  return known != nullptr && known->is_kernels(destination_, socket_.descriptor(), monotonic_now());
}

void Connecting::note_end() noexcept {
  ShortConnections* const known = socket_.maker_.short_connections();
  if (known != nullptr && !destination_.is_unspecified()) known->ended(destination_);
}

Status Connecting::connect(const sockaddr* address, socklen_t length) {
  switch (socket_.state()) {
    case State::both:
      if (!socket_.way_->listening()->refuses_clients()) return Error{EISCONN, "connect: listening"};
      socket_.give_up_way();  // after shutdown(2) it does not listen any more
      return connect_as_application(socket_.descriptor(), address, length);
    case State::listener: return Error{EISCONN, "connect: listening"};
    case State::kernel: return by_kernel(address, length, KernelReason::other);
    case State::moving: return connect_as_application(socket_.descriptor(), address, length);
    case State::undecided:
      if (socket_.is_left_to_family()) return by_kernel(address, length, KernelReason::fork);
      if (const auto reason = reason_for_kernel(address, length)) return by_kernel(address, length, *reason);
      if (socket_.mover_ && socket_.mover_->concerns(destination_)) return by_kernel_first(address, length);
      socket_.choice_.set(State::on_way);
      break;
    case State::on_way:
      // Once the way has connected, no answer is a refusal.
      if (!socket_.way_->is_connecting() && !socket_.way_->has_failed_to_connect()) return by_way(address, length);
      break;
  }
  Status connected = by_way(address, length);
  if (!is_refusal(connected)) return connected;
  log_info("connect to %s: by the kernel, after %s: %s", destination_.to_string().c_str(), connected.error().where,
           std::strerror(connected.error().code));
  return by_kernel(address, length, reason_of(connected.error().code));
}

Status Connecting::by_way(const sockaddr* address, socklen_t length) try {
  return socket_.by_way_.setup.connect(address, length);
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "connect"};
}

/// Blocks as the kernel socket does, whose O_NONBLOCK is the application's.
Status Connecting::by_kernel(const sockaddr* address, socklen_t length, KernelReason reason) {
  const int fd = socket_.descriptor();
  socket_.leave();
  const Status connected = connect_as_application(fd, address, length);
  if (connected || connected.error().code == EINPROGRESS) count_by_kernel(reason);
  return connected;
}

Status Connecting::by_kernel_first(const sockaddr* address, socklen_t length) {
  const Status connected = connect_as_application(socket_.descriptor(), address, length);
  if (!connected && connected.error().code != EINPROGRESS) return connected;
  socket_.mover_->begin(Mover::End::connecting, destination_);
  return connected;
}

bool Connecting::fall_back_if_refused() noexcept {
  if (socket_.state() != State::on_way) return socket_.state() == State::kernel;
  if (!socket_.way_->has_failed_to_connect() || socket_.is_closed()) return false;
  if (!socket_.choice_.set_from(State::on_way, State::kernel)) return socket_.state() == State::kernel;
  set_kernel_nonblocking(socket_.descriptor(), true);
  count_by_kernel(reason_of(socket_.way_->connect_error()));
  // SO_ERROR and poll(2) report its outcome.
  static_cast<void>(::connect(socket_.descriptor(), destination_.get(), destination_.length()));
  set_kernel_nonblocking(socket_.descriptor(), socket_.is_nonblocking());
  // Threads sleep on the way's descriptor.
  socket_.notify_watchers();
  return true;
}

}  // namespace ringsock::transports
