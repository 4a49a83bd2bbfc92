#include "librsocket/datagram/datagram_core.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "core/net/source_address.h"
#include "librsocket/rsocket_process.h"

namespace ringsock::rs {

/// Prefers the embedded device, which reaches this host only.
Result<Lane*> DatagramCore::lane_between(const SocketAddress& local, const SocketAddress& address) {
  Error why{ENODEV, "datagrams: no device"};
  auto devices = process.registry.all(address);
  std::stable_partition(devices.begin(), devices.end(),
                        [](const verbs::Device* device) { return device->traits().is_embedded; });
  for (verbs::Device* const device : devices) {
    const auto port = device->ud().port_of(local);
    if (!port) continue;
    auto lane = lane_on(port->device != nullptr ? *port->device : *device, *port);
    if (lane) return lane;
    why = lane.error();
  }
  return why;
}

Result<Lane*> DatagramCore::lane_on(verbs::Device& device, const verbs::UdPort& port) {
  for (const auto& lane : lanes) {
    if (&lane->device() == &device && lane->port().number == port.number && !lane->has_failed()) return lane.get();
  }
  if (lanes.size() >= kMostLanes) return Error{ENODEV, "datagrams: lanes"};
  auto opened = Lane::open(device, port, sizes);
  if (!opened) return opened.error();
  if (has_heirs) (*opened)->note_heirs();
  if (device.traits().works_on_our_cpus) works_on_our_cpus = true;
  lanes.push_back(std::move(*opened));
  if (Status watched = watch_lanes_together(); !watched) {
    lanes.pop_back();
    return watched.error();
  }
  return lanes.back().get();
}

/// A sleeper has one descriptor for all lanes.
Status DatagramCore::watch_lanes_together() {
  if (lanes.size() < 2) return ok();
  const bool is_first = !together_;
  if (is_first) together_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!together_) return Error::last("datagrams: epoll_create1");
  const auto watch = [this](Lane& lane) {
    epoll_event event{};
    event.events = EPOLLIN;
    return ::epoll_ctl(together_.get(), EPOLL_CTL_ADD, lane.arm(false), &event) == 0;
  };
  if ((!is_first || watch(*lanes.front())) && watch(*lanes.back())) return ok();
  const Error why = Error::last("datagrams: epoll_ctl");
  if (is_first) together_.reset();
  return why;
}

int DatagramCore::arm_lanes() {
  int fd = -1;
  for (const auto& lane : lanes) fd = lane->arm(lane.get() == full_lane);
  return lanes.size() < 2 ? fd : together_.get();
}

void DatagramCore::close_lanes() {
  full_lane = nullptr;
  together_.reset();
  lanes.clear();
}

void DatagramCore::abandon_lanes() {
  full_lane = nullptr;
  together_.reset();
  new (&lanes) decltype(lanes);
}

bool DatagramCore::has_room() {
  if (full_lane != nullptr && !full_lane->has_room(slots_wanted) && !full_lane->has_failed()) return false;
  full_lane = nullptr;
  return true;
}

Result<SocketAddress> DatagramCore::local_towards(const SocketAddress& address, const SocketAddress& asked) {
  if (Status bound = port.ensure_bound(); !bound) return bound.error();
  const auto name = port.name();
  if (!name) return name.error();
  if (!name->is_wildcard()) return name->unmapped();
  const bool is_asked = !asked.is_unspecified() && !asked.is_wildcard();
  auto source = is_asked ? Result<SocketAddress>(asked) : net::source_address(address);
  if (source) source->set_port(name->port());
  return source;
}

Result<Peer*> DatagramCore::peer_at(const SocketAddress& address, const SocketAddress& local) {
  Peer* const known = peers.find(address);
  if (known != nullptr && !known->lane->has_failed()) return known;
  const auto ours = local_towards(address, local);
  if (!ours) return ours.error();
  const auto lane = lane_between(*ours, address);
  if (!lane) return lane.error();
  Peer& made = known != nullptr ? *known : peers.add(address);
  made.forget_path();
  made.is_known = false;
  made.lane = *lane;
  made.local = *ours;
  made.header = wire::emit_rs_ud(*ours);
  return &made;
}

void DatagramCore::set_local(Peer& peer, const SocketAddress& local) {
  // The embedded device has all addresses of this host.
  if (!peer.lane->is_embedded()) {
    const auto lane = lane_between(local, peer.address);
    if (!lane) return;
    peer.forget_path();
    peer.is_known = peer.is_known && *lane == peer.lane;
    peer.lane = *lane;
  }
  peer.local = local;
  peer.header = wire::emit_rs_ud(local);
}

bool DatagramCore::has_path(Peer& peer, Nanos now) {
  if (peer.ah) return true;
  if (now < peer.search_again || now < handles_again_) return false;
  constexpr Nanos kAfterFailure = std::chrono::seconds(1);
  Lane& lane = *peer.lane;
  auto path = lane.device().ud().path_to(lane.port(), peer.local, peer.address, peer.search);
  if (!path && path.error().code == EAGAIN) return false;
  peer.search.reset();
  auto handle = path ? make_handle(lane, *path) : Result<verbs::Ah>(path.error());
  if (handle) {
    peer.ah = std::move(*handle);
  } else {
    peer.search_again = now + kAfterFailure;
  }
  return static_cast<bool>(peer.ah);
}

/// A device may look for the neighbour, for a second. So that peers that do not exist cannot keep the socket busy, this
/// is done in a tenth of the time at most; other peers are sent to by the kernel meanwhile.
Result<verbs::Ah> DatagramCore::make_handle(Lane& lane, ibv_ah_attr& path) {
  if (lane.is_embedded()) return lane.make_handle(path);
  constexpr Nanos kQuick = std::chrono::milliseconds(5);
  constexpr int kShare = 10;
  const Nanos begin = monotonic_now();
  auto made = lane.make_handle(path);
  const Nanos took = monotonic_now() - begin;
  if (took > kQuick) handles_again_ = begin + kShare * took;
  return made;
}

void DatagramCore::tell_number(const Peer& peer, const wire::RsUdpNote& what) {
  wire::RsUdpNote note = peer.lane->note();
  note.asks = what.asks;
  const auto header = wire::emit_rs_udp(wire::RsUdpOp::control, peer.lane->qp_number(), peer.local, note);
  static_cast<void>(port.send(header.view(), {}, peer.address, peer.local));
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
  if (!lanes.empty()) {
    const Peer* const to = is_connected() ? peers.find(peer) : nullptr;
    const Lane& lane = to != nullptr ? *to->lane : *lanes.back();
    out.path = lane.is_embedded() ? runtime::SocketPath::embedded : runtime::SocketPath::rdma;
  }
  out.peer = peer;
  statistics.describe(out);
}

void DatagramCore::note_heirs() {
  has_heirs = true;
  for (const auto& lane : lanes) lane->note_heirs();
}

void DatagramCore::leave_to_parent() {
  peers.clear();
  arrivals.clear();
  pieces.clear();
  for (const auto& lane : lanes) {
    if (lane->is_embedded() && !lane->has_failed()) elders.add(lane->qp_number());
    lane->leave_to_parent();
  }
  close_lanes();
}

}  // namespace ringsock::rs
