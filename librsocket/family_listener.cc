#include "librsocket/family_listener.h"

#include <sys/socket.h>

#include <new>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

void FamilyListener::prepare() noexcept try {
  if (id_ || !socket_.connector().has_other_way()) return;
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(core_.fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return;
  const auto name = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
  if (!name || name->port() == 0) return;
  const SocketAddress local = name->unmapped();
  const std::vector<verbs::Device*> devices = core_.process.registry.all(local);
  has_all_devices_ = devices.size() == 1;
  for (verbs::Device* const device : devices) {
    if (!device->traits().is_embedded) continue;
    auto id = device->create_id(verbs::PortSpace::tcp);
    if (!id) return;
    // Without SO_REUSEADDR, which the kernel's socket has: no other names are looked at. The kernel decides who
    // listens.
    (*id)->set_v6_only(socket_.options().integer(IPPROTO_IPV6, IPV6_V6ONLY) != 0);
    (*id)->share_port_with(core_.fd);
    Status prepared = (*id)->bind(local);
    if (prepared) prepared = (*id)->listen(verbs::ConnectionId::kNotYet);
    if (prepared) {
      id_ = *std::move(id);
    } else {
      log_debug("fork: a listener of the family will be the kernel's: %s", prepared.error().where);
    }
    return;
  }
} catch (const std::bad_alloc&) {
}

void FamilyListener::end() noexcept {
  const std::unique_ptr<verbs::ConnectionId> id = take();
  if (!id) return;
  try {
    id->end_for_all();
    // Dropping a request refuses it, so its client does not wait for an answer.
    while (id->next_event()) {
    }
  } catch (const std::bad_alloc&) {
    // The clients go by the kernel once they have waited in vain.
  }
}

}  // namespace ringsock::rs
