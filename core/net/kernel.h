// What NetworkState needs of the kernel: its netlink sockets, or a test's script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/net/link.h"
#include "core/net/neighbour.h"
#include "core/net/path.h"

namespace ringsock::net {

/// An interface came or changed, or went.
struct LinkEvent {
  Link link;
  bool gone = false;
};
/// IPv6 settings of an interface, told apart from the rest of its facts.
struct Inet6LinkEvent {
  int ifindex = 0;
  std::uint32_t hop_limit = 0;
  std::uint32_t mtu = 0;
};
struct AddressEvent {
  InterfaceAddress address;
  bool gone = false;
};
/// `facts` has the state none when the kernel removed it.
struct NeighbourEvent {
  int ifindex = 0;
  IpAddress address;
  NeighbourFacts facts;
};
/// A route to these destinations came, changed or went, in any table.
struct RouteEvent {
  Prefix destinations;
};
/// Rules, nexthop objects, settings: every path of the family may differ; AF_UNSPEC: of both.
struct RoutingEvent {
  int family = 0;
};
/// A router said that packets to `destination` were too big. The kernel may be just about to take note of it.
struct PathMtuEvent {
  IpAddress destination;
};

/// Kernel::filter_of() may answer otherwise than before.
struct FiltersEvent {};

using KernelEvent = std::variant<LinkEvent, Inet6LinkEvent, AddressEvent, NeighbourEvent, RouteEvent, RoutingEvent,
                                 PathMtuEvent, FiltersEvent>;

struct KernelEvents {
  std::vector<KernelEvent> events;  ///< in the kernel's order
  bool more = false;                ///< there may be more already
  bool lost = false;                ///< some are missing, older than those that will be read next
};

/// A path as the kernel tells it: mtu and hop_limit are 0 where the route sets none.
struct PathAnswer {
  Path path;
  Nanos valid_for{};  ///< 0: until something changes
};

/// Threads: any, except read_events() and reopen(), which one thread calls at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// Readable when read_events() has something, or at the time of wake_at().
  [[nodiscard]] virtual int fd() const = 0;
  virtual void wake_at(Nanos when) = 0;  ///< CLOCK_MONOTONIC; 0: never; one time only, the latest call counts
  [[nodiscard]] virtual Nanos now() const = 0;

  /// All links, then all addresses.
  virtual Result<std::vector<KernelEvent>> read_tables() = 0;
  /// Some of what happened, without waiting.
  virtual KernelEvents read_events() = 0;

  virtual Result<PathAnswer> path(const PathQuery& query) = 0;
  /// State none when the kernel has no entry.
  virtual Result<NeighbourFacts> neighbour(int ifindex, const IpAddress& address) = 0;
  virtual Status use_neighbour(int ifindex, const IpAddress& address) = 0;  ///< RTM_NEWNEIGH with NTF_USE
  [[nodiscard]] virtual std::uint8_t default_hop_limit() const = 0;         ///< of IPv4
  /// What netfilter has that may concern packets of `family` on that interface, by a name; nothing: none.
  [[nodiscard]] virtual std::optional<std::string> filter_of(int /*family*/, std::string_view /*device*/) const {
    return std::nullopt;
  }

  /// Around fork(2): between them no other thread is inside.
  virtual void before_fork() = 0;
  virtual void after_fork() = 0;
  /// In a child: what it inherited stays the parent's, it gets sockets of its own. Errors: EXDEV the calling thread is
  /// in another network namespace; EMFILE and so on: it can be called again.
  virtual Status reopen() = 0;
};

}  // namespace ringsock::net
