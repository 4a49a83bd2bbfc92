// What senders and rings need to know of their network namespace: links, addresses, paths, neighbours.
//
// The kernel is asked for paths (RTM_GETROUTE), and its answers are kept; they are not computed from dumped tables. An
// answer takes 5 us (median, 3 us of which are two system calls), a kept one 0.13 us, and a sender whose generation has
// not moved 2 ns; evaluating copies of the tables would take well below one microsecond, but would repeat logic of the
// kernel and have to follow each of its releases: rules with ports, uids, marks, VRFs, nexthop objects, seeded
// multipath hashes, ignore_routes_with_linkdown, source address selection (RFC 6724), and path MTU exceptions, which
// are in no table at all. The kernel is asked once about each destination address, and again when a change may affect
// it. Ports are a part of the question only while they may matter to the answer.
//
// Neighbours are copies of the kernel's entries, because a sender needs them at any moment and each may change by
// itself. The kernel sends ARP and NDP, also for packets that it never sees: it is told which entries are in use
// (NTF_USE).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/net/interfaces.h"
#include "core/net/neighbour.h"
#include "core/net/path.h"

namespace ringsock::net {

class Kernel;  // kernel.h: the netlink sockets, or a test's

/// A change, as listeners receive it. The tables and generation() are up to date by then.
struct NetworkChange {
  enum class What : std::uint8_t {
    link,        ///< `ifindex` was added, changed or removed: see link()
    address,     ///< an address of `ifindex` was added, changed or removed
    neighbour,   ///< `address` on `ifindex`: other MAC, usable now or no more, failed
    paths,       ///< answers of path_to() may differ now
    filters,     ///< answers of filter_on() may differ now
    everything,  ///< events were lost, and all tables were read anew
  };
  What what;
  int ifindex = 0;
  IpAddress address;
};

/// The name of filters that may exist but cannot be seen without CAP_NET_ADMIN, or root for older iptables.
inline constexpr std::string_view kUnseenFilters = "rules that this process may not see";

/// One network namespace. Threads: any, unless said otherwise.
///
/// A sender keeps the headers it has built, and asks anew when the generation has moved:
///
///     if (cached.generation != network.generation()) {
///       const auto generation = network.generation();   // before asking: what changes meanwhile counts
///       auto path = network.path_to(query);             // from memory unless it is affected
///       auto neighbour = network.neighbour(*path);
///       ... build the header from neighbour->facts(), keep `neighbour`
///       cached.generation = generation;
///     }
///     if (cached.neighbour->needs_refresh()) network.request_resolution(*cached.neighbour);
///
/// While a neighbour is not usable, a sender uses the kernel's queue: a datagram sent by a kernel socket starts the
/// resolution, waits there in order, and has left before the change is reported here.
class NetworkState {
 public:
  /// Reads the tables. Errors: those of `kernel`.
  static Result<std::shared_ptr<NetworkState>> open(std::unique_ptr<Kernel> kernel);
  ~NetworkState();
  NetworkState(const NetworkState&) = delete;
  NetworkState& operator=(const NetworkState&) = delete;

  /// Grows whenever a path, link fact or neighbour that was handed out may be wrong. Costs one relaxed load.
  [[nodiscard]] std::uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  // -- keeping up to date --------------------------------------------------------------------------

  /// Returns a descriptor that becomes readable (EPOLLIN) when process_events() has something to do. It stays the same
  /// until a fork; a child has another one, which it must watch itself. Callers must not read or close it.
  [[nodiscard]] int fd() const;
  /// Reads the kernel's events, without waiting, and calls listeners. Does nothing while another thread processes
  /// events. The caller must not hold locks that a listener takes.
  void process_events();

  using ListenerId = std::uint64_t;
  /// `listener` is called in process_events(), without locks of this class; it may call everything here.
  ListenerId add_listener(std::function<void(const NetworkChange&)> listener);
  /// After it returns the listener does not run and is not called again (unless remove_listener() was called from
  /// within a listener).
  void remove_listener(ListenerId listener);

  // -- paths ---------------------------------------------------------------------------------------

  /// Returns the path of a flow, which may be of type `unreachable`. Takes 5 us when the kernel must be asked,
  /// otherwise about 0.1 us.
  /// Errors, when the kernel could not be asked: EMFILE, ENOMEM, ENOBUFS, EINVAL no destination.
  Result<Path> path_to(const PathQuery& query);
  /// Forgets answers about `destination`, for a caller that learned that they are wrong, e.g. by an ICMP error.
  void forget_paths_to(const IpAddress& destination);

  // -- neighbours ----------------------------------------------------------------------------------

  /// Returns the neighbour at the next hop of a unicast, broadcast or multicast path. Never null. A neighbour that
  /// needs no resolution has the state no_arp and its MAC. One that the kernel does not know has the state `none`; call
  /// request_resolution() for it.
  std::shared_ptr<Neighbour> neighbour(const Path& path);
  std::shared_ptr<Neighbour> neighbour(int ifindex, const IpAddress& next_hop);
  /// Has the kernel resolve or confirm an entry; harmless when the kernel is doing so already. The result arrives as a
  /// change. Errors: EPERM without CAP_NET_ADMIN (a datagram by a kernel socket has the same effect), ENODEV, ENOBUFS
  /// table full. An IPv6 interface without a link-local address cannot ask by this call; a datagram is needed there,
  /// too.
  Status request_resolution(const Neighbour& neighbour);

  // -- links and addresses -------------------------------------------------------------------------

  [[nodiscard]] std::optional<Link> link(int ifindex) const;
  [[nodiscard]] std::optional<Link> link(std::string_view name) const;
  [[nodiscard]] std::vector<Link> links() const;
  /// Returns the links whose master it is.
  [[nodiscard]] std::vector<Link> members_of(int ifindex) const;
  /// Returns the addresses of an interface, or of all interfaces for 0.
  [[nodiscard]] std::vector<InterfaceAddress> addresses(int ifindex = 0) const;
  /// Returns the entry of this address. Several interfaces may have the same link-local IPv6 address: `ifindex` selects
  /// one.
  [[nodiscard]] std::optional<InterfaceAddress> find_address(const IpAddress& address, int ifindex = 0) const;

  // -- rules ---------------------------------------------------------------------------------------
  /// Returns the name, for the log, of a netfilter chain that may concern packets of `family` that this host sends or
  /// receives by the interface. Returns nothing when such packets would bypass no rule.
  [[nodiscard]] std::optional<std::string> filter_on(int family, int ifindex) const;

  // -- fork(2), as Networks calls them -------------------------------------------------------------

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  class Impl;
  explicit NetworkState(std::unique_ptr<Kernel> kernel);

  std::atomic<std::uint64_t> generation_{1};
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringsock::net
