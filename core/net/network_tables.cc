#include "core/net/network_tables.h"

#include <algorithm>
#include <variant>

namespace ringsock::net {

namespace {

// Raw sockets get an ICMP message just before the kernel itself acts on it.
constexpr std::chrono::milliseconds kSecondLookAfter{20};
constexpr std::size_t kMaxSecondLooks = 256;
constexpr std::uint32_t kMaxIpv4Mtu = 65535;

Prefix only(const IpAddress& address) { return {address, static_cast<std::uint8_t>(address.bytes().size() * 8)}; }

void note_paths(bool forgotten, EventEffects& out) {
  out.paths = out.paths || forgotten;
  out.matters = out.matters || forgotten;
}

Nanos earlier(Nanos a, Nanos b) {
  if (a == Nanos{} || b == Nanos{}) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

void NetworkTables::apply(std::span<const KernelEvent> events, Nanos now, EventEffects& out) {
  now_ = now;
  for (const KernelEvent& event : events) {
    std::visit([&](const auto& kind) { take(kind, out); }, event);
  }
}

void NetworkTables::link_changed(int ifindex, EventEffects& out) {
  // The kernel sends no events for IPv4 routes that vanish with a link or come back with its carrier.
  note_paths(paths.forget_family(AF_UNSPEC), out);
  out.matters = true;
  out.changes.push_back({NetworkChange::What::link, ifindex, {}});
}

void NetworkTables::take(const LinkEvent& event, EventEffects& out) {
  if (links.apply(event)) link_changed(event.link.index, out);
}

void NetworkTables::take(const Inet6LinkEvent& event, EventEffects& out) {
  if (links.apply(event)) link_changed(event.ifindex, out);
}

void NetworkTables::take(const AddressEvent& event, EventEffects& out) {
  if (!links.apply(event)) return;
  // Another source address may fit better now, and routes that prefer an address vanish with it without an event.
  note_paths(paths.forget_family(event.address.address.family()), out);
  out.changes.push_back({NetworkChange::What::address, event.address.ifindex, event.address.address});
}

void NetworkTables::take(const NeighbourEvent& event, EventEffects& out) {
  const NeighbourTable::Update update = neighbours.update(event.ifindex, event.address, event.facts);
  if (update.refresh) out.to_refresh.push_back(update.neighbour);
  if (!update.matters) return;
  out.matters = true;
  out.changes.push_back({NetworkChange::What::neighbour, event.ifindex, event.address});
}

void NetworkTables::take(const RouteEvent& event, EventEffects& out) {
  note_paths(paths.forget_to(event.destinations), out);
}

bool NetworkTables::forget_routing(int family) {
  for (const int each : {AF_INET, AF_INET6}) {
    if (family == AF_UNSPEC || family == each) ports_decide_[index_of(each)].reset();
  }
  return paths.forget_family(family);
}

void NetworkTables::take(const RoutingEvent& event, EventEffects& out) {
  note_paths(forget_routing(event.family), out);
}

void NetworkTables::take(const PathMtuEvent& event, EventEffects& out) {
  note_paths(paths.forget_to(only(event.destination)), out);
  if (second_looks_.size() < kMaxSecondLooks) {
    second_looks_.emplace_back(now_ + kSecondLookAfter, only(event.destination));
  } else {
    second_looks_.back() = {now_ + kSecondLookAfter, Prefix{}};  // too many to keep apart: forget all
  }
}

void NetworkTables::take(const FiltersEvent& /*event*/, EventEffects& out) {
  out.matters = true;
  out.changes.push_back({NetworkChange::What::filters, 0, {}});
}

void NetworkTables::apply_time(Nanos now, EventEffects& out) {
  note_paths(paths.forget_expired(now), out);
  std::erase_if(second_looks_, [&](const auto& look) {
    if (look.first > now) return false;
    note_paths(paths.forget_to(look.second), out);
    return true;
  });
}

Nanos NetworkTables::deadline() const {
  Nanos out = paths.next_expiry();
  for (const auto& [when, destinations] : second_looks_) out = earlier(out, when);
  return out;
}

void NetworkTables::replace_links(std::span<const KernelEvent> tables) {
  links.clear();
  for (const KernelEvent& event : tables) {
    if (const auto* link = std::get_if<LinkEvent>(&event)) links.apply(*link);
    if (const auto* address = std::get_if<AddressEvent>(&event)) links.apply(*address);
  }
}

void NetworkTables::complete(Path& path, int family, std::uint8_t default_hop_limit) const {
  if (path.type == PathType::unreachable) return;
  const Link* link = links.find(path.oif);
  const bool is_v6 = family == AF_INET6;
  if (link != nullptr) {
    const std::uint32_t of_link = is_v6 && link->ipv6_mtu != 0 ? link->ipv6_mtu : link->mtu;
    path.mtu = path.mtu == 0 ? of_link : std::min(path.mtu, link->mtu);
    if (is_v6 && path.hop_limit == 0) path.hop_limit = static_cast<std::uint8_t>(std::min(link->ipv6_hop_limit, 255U));
  }
  if (!is_v6) path.mtu = std::min(path.mtu, kMaxIpv4Mtu);
  if (path.hop_limit == 0) path.hop_limit = default_hop_limit;
}

}  // namespace ringsock::net
