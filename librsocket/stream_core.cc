#include "librsocket/stream_core.h"

#include <sys/socket.h>

#include <array>
#include <mutex>

namespace ringsock::rs {

StreamCore::StreamCore(runtime::Endpoint& its_endpoint, Process& its_process, int its_domain, int number)
    : process(its_process), domain(its_domain), endpoint(its_endpoint), fd(number) {
  describe();
}

runtime::SocketPath StreamCore::path() const {
  if (!is_connected()) return runtime::SocketPath::none;
  return id->device().traits().is_embedded ? runtime::SocketPath::embedded : runtime::SocketPath::rdma;
}

void StreamCore::describe() {
  constexpr std::array kStates{runtime::SocketState::created,   runtime::SocketState::bound,
                               runtime::SocketState::listening, runtime::SocketState::connecting,
                               runtime::SocketState::connected, runtime::SocketState::failed};
  runtime::SocketDescription description{.descriptor = fd, .state = kStates[static_cast<std::size_t>(state())]};
  if (closed.load(std::memory_order_relaxed)) {
    description.descriptor = -1;
    description.state = runtime::SocketState::closed;
  }
  description.path = path();
  if (id) {
    description.local = id->local_address();
    description.peer = id->peer_address();
  }
  statistics.describe(description);
}

int StreamCore::take_error() {
  if (const int error = pending_error.exchange(0, std::memory_order_acq_rel)) return error;
  if (!is_connected() || closed.load(std::memory_order_relaxed)) return 0;
  const int failure = failure_as_told();
  if (failure != 0 && !failure_taken.exchange(true, std::memory_order_acq_rel)) {
    statistics.count_error();
    return failure;
  }
  return 0;
}

int StreamCore::failure_as_told() const {
  const int failure = connection->ends().failure();
  return failure == ECONNRESET && connection->ends().has_peer_ended() ? EPIPE : failure;
}

bool StreamCore::is_over() const {
  return connection->ends().failure() != 0 || sent_into_the_void.load(std::memory_order_acquire) ||
         (connection->ends().has_peer_ended() && write_shut.load(std::memory_order_acquire));
}

void StreamCore::disconnect() {
  if (!connection->ends().peer_disconnected()) {
    [[maybe_unused]] const Status told = connection->requests().send_end(wire::RsControl::disconnect);
  }
  connection->ends().expect_flush();
}

}  // namespace ringsock::rs
