#include "librsocket/stream_socket.h"

#include "librsocket/keepalive.h"
#include "librsocket/process.h"

namespace ringsock::rs {

StreamSocket::StreamSocket(Process& process, int domain, int fd)
    : process_(process), domain_(domain), fd_(fd), settings_(settings_from(process.config)) {}

StreamSocket::~StreamSocket() { stop_background(); }

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
