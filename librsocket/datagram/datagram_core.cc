#include "librsocket/datagram/datagram_core.h"

#include <cerrno>

#include "core/net/source_address.h"
#include "librsocket/rsocket_process.h"

namespace ringsock::rs {

Status DatagramCore::open_lane(const SocketAddress& address) {
  Error why{ENODEV, "datagrams: no device"};
  for (verbs::Device* const device : process.registry.all(address)) {
    if (lane && &lane->device() == device) return ok();
    if (lane || !device->ud().path_to(address)) continue;
    auto opened = Lane::open(*device, slots);
    if (opened) {
      lane = std::move(*opened);
      if (has_heirs) lane->note_heirs();
      return ok();
    }
    why = opened.error();
  }
  return why;
}

Result<SocketAddress> DatagramCore::local_towards(const SocketAddress& address) {
  if (Status bound = port.ensure_bound(); !bound) return bound.error();
  const auto name = port.name();
  if (!name) return name.error();
  if (!name->is_wildcard()) return name->unmapped();
  auto source = net::source_address(address);
  if (source) source->set_port(name->port());
  return source;
}

Result<Peer*> DatagramCore::peer_at(const SocketAddress& address) {
  if (Peer* const known = peers.find(address)) return known;
  if (Status opened = open_lane(address); !opened) return opened.error();
  const auto local = local_towards(address);
  if (!local) return local.error();
  auto handle = lane->make_handle(address);
  if (!handle) return handle.error();
  Peer& made = peers.add(address);
  made.local = *local;
  made.header = wire::emit_rs_ud(*local);
  made.ah = std::move(*handle);
  return &made;
}

void DatagramCore::describe(int descriptor) {
  using runtime::SocketState;
  runtime::SocketDescription out{.descriptor = descriptor};
  if (is_closed) {
    out.state = SocketState::closed;
  } else if (const auto name = port.name(); name && name->port() != 0) {
    out.state = is_connected() ? SocketState::connected : SocketState::bound;
    out.local = *name;
  }
  out.path = lane ? runtime::SocketPath::embedded : runtime::SocketPath::none;
  out.peer = peer;
  statistics.describe(out);
}

void DatagramCore::note_heirs() {
  has_heirs = true;
  if (lane) lane->note_heirs();
}

void DatagramCore::leave_to_parent() {
  peers.clear();
  arrivals.clear();
  if (lane) lane->leave_to_parent();
  lane.reset();
}

}  // namespace ringsock::rs
