#include "preload/offload.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "core/base/log.h"
#include "librsocket/process.h"

namespace ringsock::preload {

namespace {
constinit std::atomic<bool> stopped{false};
}  // namespace

bool may_offload(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM) return false;
  if (protocol != 0 && protocol != IPPROTO_TCP) return false;
  return !stopped.load(std::memory_order_relaxed) && !rs::process().registry.empty();
}

bool may_offload_address(int /*domain*/, const SocketAddress& /*address*/) {
  return !stopped.load(std::memory_order_relaxed);
}

void stop_offloading(const char* why) {
  if (!stopped.exchange(true)) log_info("new sockets stay with the kernel: %s", why);
}

}  // namespace ringsock::preload
