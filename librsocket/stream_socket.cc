#include "librsocket/stream_socket.h"

#include <array>
#include <shared_mutex>

#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "librsocket/keepalive.h"
#include "librsocket/process.h"

namespace ringsock::rs {

StreamSocket::StreamSocket(Process& process, int domain, int fd)
    : process_(process), domain_(domain), fd_(fd), settings_(settings_from(process.config)) {
  describe();
  runtime::fork_registry().enter(*this);
}

StreamSocket::~StreamSocket() {
  stop_background();
  stop_serving();
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
  if (half_made_) {
    [[maybe_unused]] const void* const lost[] = {iomap_.release(), connection_.release(), id_.release()};
    return;
  }
  end_unseen();
  // Destroyed here, in this order, so that a fork finds the connection complete or not at all.
  iomap_.reset();
  connection_.reset();
  accept_queue_.clear();
  half_open_.clear();
  id_.reset();
  if (connection_owns_fd_.load(std::memory_order_relaxed)) runtime::fd_table().end_close(fd_);
}

runtime::SocketPath StreamSocket::path() const {
  if (!is_connected()) return runtime::SocketPath::none;
  return id_->device().is_embedded() ? runtime::SocketPath::embedded : runtime::SocketPath::rdma;
}

void StreamSocket::describe() {
  constexpr std::array kStates{runtime::SocketState::created,   runtime::SocketState::bound,
                               runtime::SocketState::listening, runtime::SocketState::connecting,
                               runtime::SocketState::connected, runtime::SocketState::failed};
  runtime::SocketDescription description{.descriptor = fd_, .state = kStates[static_cast<std::size_t>(state())]};
  if (closed_.load(std::memory_order_relaxed)) {
    description.descriptor = -1;
    description.state = runtime::SocketState::closed;
  }
  description.path = path();
  if (id_) {
    description.local = id_->local_address();
    description.peer = id_->peer_address();
  }
  statistics_.describe(description);
}

QueueSettings StreamSocket::settings_from(const config::RsocketConfig& config) {
  QueueSettings settings;
  settings.send_queue = config.sqsize_default;
  settings.receive_queue = config.rqsize_default;
  settings.inline_bytes = config.inline_default;
  settings.receive_ring = std::max(2u, config.mem_default + config.mem_default % 2);
  settings.send_ring = config.wmem_default;
  settings.iomap_entries = wire::decode_iomap_size(wire::encode_iomap_size(config.iomap_size));
  return settings;
}

}  // namespace ringsock::rs
