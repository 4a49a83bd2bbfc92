// All facts about a network namespace, and the effects of events on them.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/net/kernel.h"
#include "core/net/link_table.h"
#include "core/net/neighbour_table.h"
#include "core/net/network_state.h"
#include "core/net/path_cache.h"

namespace ringsock::net {

/// The effects of events.
struct EventEffects {
  bool matters = false;                                ///< whether the generation must grow
  bool paths = false;                                  ///< whether answers about paths were forgotten
  std::vector<NetworkChange> changes;                  ///< for listeners
  std::vector<std::shared_ptr<Neighbour>> to_refresh;  ///< those that went stale while in use
};

/// Does no I/O, reads no clock, takes no locks. Threads: one at a time.
class NetworkTables {
 public:
  void apply(std::span<const KernelEvent> events, Nanos now, EventEffects& out);
  /// Forgets facts that have expired.
  void apply_time(Nanos now, EventEffects& out);
  /// Returns the time when apply_time() next has something to do; 0: never.
  [[nodiscard]] Nanos deadline() const;

  /// Links and addresses as they were read from the kernel.
  void replace_links(std::span<const KernelEvent> tables);
  /// Fills in what the route does not set: the MTU and hop limit of the interface, if it is known, and of the
  /// namespace.
  /// @param family  the destination's; a next hop may have the other one
  void complete(Path& path, int family, std::uint8_t default_hop_limit) const;

  /// Returns whether ports matter to paths of `family`; nothing: the kernel has to be asked.
  [[nodiscard]] std::optional<bool> ports_decide(int family) const { return ports_decide_[index_of(family)]; }
  void note_ports_decide(int family, bool decide) { ports_decide_[index_of(family)] = decide; }
  /// Forgets all answers about paths of `family`, and whether ports matter to them; AF_UNSPEC: of both. Returns what
  /// PathCache::forget_family() returns.
  bool forget_routing(int family);

  LinkTable links;
  NeighbourTable neighbours;
  PathCache paths{kPathsInHalf};

 private:
  static constexpr std::size_t kPathsInHalf = 16384;
  static constexpr std::size_t index_of(int family) { return family == AF_INET6 ? 1 : 0; }

  void take(const LinkEvent& event, EventEffects& out);
  void take(const Inet6LinkEvent& event, EventEffects& out);
  void take(const AddressEvent& event, EventEffects& out);
  void take(const NeighbourEvent& event, EventEffects& out);
  void take(const RouteEvent& event, EventEffects& out);
  void take(const RoutingEvent& event, EventEffects& out);
  void take(const PathMtuEvent& event, EventEffects& out);
  static void take(const FiltersEvent& event, EventEffects& out);
  void link_changed(int ifindex, EventEffects& out);

  std::array<std::optional<bool>, 2> ports_decide_;  ///< of IPv4 and IPv6
  Nanos now_{};                                      ///< of the events that are being applied
  std::vector<std::pair<Nanos, Prefix>> second_looks_;
};

}  // namespace ringsock::net
