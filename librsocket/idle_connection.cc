#include "librsocket/idle_connection.h"

#include <poll.h>

#include "librsocket/connection.h"

namespace ringsock::rs {

namespace {
bool is_idle(const StreamCore& core, const Inheritance& inheritance) noexcept {
  return core.is_connected() && core.is_suspended() && !inheritance.is_used_elsewhere();
}
}  // namespace

bool is_end_waiting(const StreamCore& core, const Inheritance& inheritance) noexcept {
  return is_idle(core, inheritance) && core.connection->has_end_waiting(*core.id);
}

bool has_peer_left(const StreamCore& core, const Inheritance& inheritance) noexcept {
  if (!is_idle(core, inheritance) || !core.connection_owns_fd.load(std::memory_order_acquire)) return false;
  pollfd link{core.fd.load(), POLLRDHUP, 0};
  return ::poll(&link, 1, 0) > 0 && (link.revents & (POLLRDHUP | POLLHUP)) != 0;
}

}  // namespace ringsock::rs
