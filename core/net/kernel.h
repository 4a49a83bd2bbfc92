// The kernel as NetworkState needs it: netlink sockets, or a test's script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/net/interfaces.h"
#include "core/net/neighbour.h"
#include "core/net/path.h"

namespace ringsock::net {

/// An interface was added, changed or removed.
struct LinkEvent {
  Link link;
  bool gone = false;
};
/// IPv6 settings of an interface. The kernel reports them apart from the other facts.
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
/// A route to these destinations was added, changed or removed, in any table.
struct RouteEvent {
  Prefix destinations;
};
/// Rules, nexthop objects or settings changed: every path of the family may differ, of both families with AF_UNSPEC.
struct RoutingEvent {
  int family = 0;
};
/// A router said that packets to `destination` were too big. The kernel may not have processed the message yet.
struct PathMtuEvent {
  IpAddress destination;
};

/// Answers of Kernel::filter_of() may have changed.
struct FiltersEvent {};

using KernelEvent = std::variant<LinkEvent, Inet6LinkEvent, AddressEvent, NeighbourEvent, RouteEvent, RoutingEvent,
                                 PathMtuEvent, FiltersEvent>;

struct KernelEvents {
  std::vector<KernelEvent> events;  ///< in the kernel's order
  bool more = false;                ///< whether more may wait already
  bool lost = false;                ///< whether events are missing that are older than those to be read next
};

/// A path as the kernel reports it: mtu and hop_limit are 0 when the route sets none.
struct PathAnswer {
  Path path;
  Nanos valid_for{};  ///< 0: until something changes
};

/// Threads: any, except read_events() and reopen(), which one thread calls at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// Becomes readable when read_events() has something, and at the time of wake_at().
  [[nodiscard]] virtual int fd() const = 0;
  virtual void wake_at(Nanos when) = 0;  ///< CLOCK_MONOTONIC; 0: never; wakes once; only the latest call counts
  [[nodiscard]] virtual Nanos now() const = 0;

  /// Reads all links, then all addresses.
  virtual Result<std::vector<KernelEvent>> read_tables() = 0;
  /// Reads some of the events, without waiting.
  virtual KernelEvents read_events() = 0;

  virtual Result<PathAnswer> path(const PathQuery& query) = 0;
  /// Returns whether the ports of a query may matter to its answer: a rule names ports, or the flows of a multipath
  /// route are told apart by them. A RoutingEvent reports changes of rules.
  virtual bool ports_decide(int /*family*/) { return true; }
  /// The state is `none` when the kernel has no entry.
  virtual Result<NeighbourFacts> neighbour(int ifindex, const IpAddress& address) = 0;
  virtual Status use_neighbour(int ifindex, const IpAddress& address) = 0;  ///< RTM_NEWNEIGH with NTF_USE
  [[nodiscard]] virtual std::uint8_t default_hop_limit() const = 0;         ///< of IPv4
  /// Returns the name of a netfilter chain that may concern packets of `family` on that interface, or nothing.
  [[nodiscard]] virtual std::optional<std::string> filter_of(int /*family*/, std::string_view /*device*/) const {
    return std::nullopt;
  }

  /// Called around fork(2). No other thread uses the object between the two calls.
  virtual void before_fork() = 0;
  virtual void after_fork() = 0;
  /// Called in a child, which leaves the inherited sockets to the parent and opens its own. Errors: EXDEV the calling
  /// thread is in another network namespace; EMFILE and so on: it can be called again.
  virtual Status reopen() = 0;
};

}  // namespace ringsock::net
