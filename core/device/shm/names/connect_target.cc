#include "core/device/shm/names/connect_target.h"

#include "core/base/unique_fd.h"
#include "core/device/shm/names/port_lookup.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

SocketAddress connect_target(const SocketAddress& destination) {
  const SocketAddress target = canonical_address(destination);
  if (!target.is_wildcard()) return target;
  return target.family() == AF_INET6 ? SocketAddress::v6(in6addr_loopback, target.port())
                                     : SocketAddress::v4(INADDR_LOOPBACK, target.port());
}

Status check_unicast(const SocketAddress& target) {
  if (target.port() == 0) return Error{ECONNREFUSED, "resolve: port 0"};
  if (target.family() == AF_INET6) {
    if (IN6_IS_ADDR_MULTICAST(&target.in6().sin6_addr)) return Error{ENETUNREACH, "resolve: multicast"};
    return ok();
  }
  const in_addr_t host = ntohl(target.in4().sin_addr.s_addr);
  // bind(2) would accept these although they are no addresses of this host.
  if (IN_MULTICAST(host) || host == INADDR_BROADCAST) return Error{ENETUNREACH, "resolve: multicast or broadcast"};
  return ok();
}

Status check_local(const SocketAddress& target, int network_of) {
  constexpr std::uint16_t kAnyPort = 9;  // connecting a datagram socket sends nothing
  if (target.is_loopback()) return ok();
  const UniqueFd probe(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return explain_unreachable(Error::last("resolve: socket"));
  const Error foreign{EHOSTUNREACH, "resolve: not an address of this host"};
  if (network_of >= 0 && !share_network(probe.get(), network_of)) return foreign;
  SocketAddress there = target;
  there.set_port(kAnyPort);
  if (::connect(probe.get(), there.get(), there.length()) != 0) return foreign;
  // Packets to an address of this host have that address as their source; packets to other hosts never do.
  const auto here = name_by(::getsockname, probe.get(), "resolve: getsockname");
  if (!here) return here.error();
  there.set_port(here->port());
  return *here == there ? ok() : Status(foreign);
}

SocketAddress source_towards(const SocketAddress& target) {
  const bool is_v4_loopback = target.family() == AF_INET && target.is_loopback();
  return is_v4_loopback ? SocketAddress::v4(INADDR_LOOPBACK, target.port()) : target;
}

Error explain_unreachable(Error bind_error) {
  switch (bind_error.code) {
    case EADDRNOTAVAIL:
    case EINVAL:  // a link-local address without its interface
    case ENODEV: return {EHOSTUNREACH, "resolve: not an address of this host"};
    case EAFNOSUPPORT: return {ENETUNREACH, "resolve: address family"};
    // connect(2) reports a lack of free ports for the source address by this error.
    case EADDRINUSE: return {EADDRNOTAVAIL, "resolve: no free port"};
    default: return bind_error;
  }
}

}  // namespace ringsock::soft
