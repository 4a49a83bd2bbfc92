// What senders and rings know of the network namespace they are in: links, addresses, paths, neighbours.
//
// Paths are asked from the kernel (RTM_GETROUTE) and kept, not computed from dumped tables. An answer takes 5 us
// (median, 3 us of which are two system calls), a kept one 0.13 us, and a sender whose generation has not moved 2 ns;
// evaluating copies of the tables would take well below one microsecond, but would be a copy of the kernel's logic that
// must follow each of its releases: rules with ports, uids, marks, VRFs, nexthop objects, seeded multipath hashes,
// ignore_routes_with_linkdown, source address selection (RFC 6724), and path MTU exceptions, which are in no table at
// all. A flow pays once, and again when something changes that may matter to it.
//
// Neighbours are the kernel's too, mirrored, because a sender needs them at any moment and each may change by itself.
// The kernel sends ARP and NDP, also for packets that it never sees: it is told which entries are in use (NTF_USE).
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
#include "core/net/link.h"
#include "core/net/neighbour.h"
#include "core/net/path.h"

namespace ringsock::net {

class Kernel;  // kernel.h: the netlink sockets, or a test's

/// What a listener is told. The tables and generation() are up to date by then.
struct NetworkChange {
  enum class What : std::uint8_t {
    link,        ///< `ifindex` came, changed or went: see link()
    address,     ///< an address of `ifindex` came, changed or went
    neighbour,   ///< `address` on `ifindex`: other MAC, usable now or no more, failed
    paths,       ///< answers of path_to() may differ now
    filters,     ///< answers of filter_on() may differ now
    everything,  ///< events were lost, and all tables were read anew
  };
  What what;
  int ifindex = 0;
  IpAddress address;
};

/// The name of what may be there and cannot be seen, since that takes CAP_NET_ADMIN, or root for older iptables.
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
/// While a neighbour is not usable, the simplest queue is the kernel's: a datagram sent by the kernel's own socket
/// starts the resolution, waits there in order, and has left before the change is told here.
class NetworkState {
 public:
  /// Reads the tables. Errors: those of `kernel`.
  static Result<std::shared_ptr<NetworkState>> open(std::unique_ptr<Kernel> kernel);
  ~NetworkState();
  NetworkState(const NetworkState&) = delete;
  NetworkState& operator=(const NetworkState&) = delete;

  /// Grows whenever a path, link fact or neighbour that was handed out may not hold any more. One relaxed load.
  [[nodiscard]] std::uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  // -- being up to date

  /// Readable (EPOLLIN) when process_events() has something to do. Stays the same until a fork; a child has another
  /// one, which it must watch itself. Not to be read or closed by others.
  [[nodiscard]] int fd() const;
  /// Takes what the kernel has told, without waiting, and calls listeners. Does nothing while another thread is at it.
  /// Not with locks that a listener takes.
  void process_events();

  using ListenerId = std::uint64_t;
  /// `listener` is called in process_events(), without locks of this class; it may call everything here.
  ListenerId add_listener(std::function<void(const NetworkChange&)> listener);
  /// No call of it runs or comes after return (unless called from within a listener).
  void remove_listener(ListenerId listener);

  // -- paths

  /// The path of a flow. Unreachable is an answer, too. 5 us when the kernel must be asked, else some 0.1 us.
  /// Errors, when the kernel could not be asked: EMFILE, ENOMEM, ENOBUFS, EINVAL no destination.
  Result<Path> path_to(const PathQuery& query);
  /// Forgets answers about `destination`: for who learned that they are wrong, e.g. by an ICMP error.
  void forget_paths_to(const IpAddress& destination);

  // -- neighbours

  /// Who is at the next hop of a unicast, broadcast or multicast path. Never null. What needs no resolution is no_arp
  /// with its MAC; a neighbour the kernel does not know is `none`: request_resolution().
  std::shared_ptr<Neighbour> neighbour(const Path& path);
  std::shared_ptr<Neighbour> neighbour(int ifindex, const IpAddress& next_hop);
  /// Has the kernel resolve, or confirm, an entry; harmless when it is about to. The outcome comes as a change.
  /// Errors: EPERM without CAP_NET_ADMIN (a datagram by the kernel's socket does the same), ENODEV, ENOBUFS table full.
  /// An IPv6 interface without link-local address has none to ask from: there, too, only a datagram helps.
  Status request_resolution(const Neighbour& neighbour);

  // -- links and addresses

  [[nodiscard]] std::optional<Link> link(int ifindex) const;
  [[nodiscard]] std::optional<Link> link(std::string_view name) const;
  [[nodiscard]] std::vector<Link> links() const;
  /// Those whose master it is.
  [[nodiscard]] std::vector<Link> members_of(int ifindex) const;
  /// ifindex 0: of all interfaces.
  [[nodiscard]] std::vector<InterfaceAddress> addresses(int ifindex = 0) const;
  /// The interface that has this address. Link-local IPv6 addresses may be there several times: `ifindex` tells which.
  [[nodiscard]] std::optional<InterfaceAddress> find_address(const IpAddress& address, int ifindex = 0) const;

  // -- rules
  /// What netfilter has that may concern packets of `family` that this host sends or receives by the interface, by a
  /// name for the log. Nothing: none of its rules would be passed by.
  [[nodiscard]] std::optional<std::string> filter_on(int family, int ifindex) const;

  // -- fork(2), as Networks calls them

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
