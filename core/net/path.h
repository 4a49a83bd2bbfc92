// The path on which packets of a flow leave this host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "core/net/ip_address.h"

namespace ringsock::net {

/// Everything that decides about a flow's route. Fields that are not known keep these values. `destination` is
/// required.
struct PathQuery {
  IpAddress destination{};
  IpAddress source{};                  ///< what the socket is bound to; unspecified: the kernel chooses
  int oif = 0;                         ///< SO_BINDTODEVICE, IP_PKTINFO, IP_MULTICAST_IF, sin6_scope_id; may be a VRF
  std::uint32_t mark = 0;              ///< SO_MARK
  std::uint8_t tos = 0;                ///< IP_TOS, IPV6_TCLASS; the ECN bits do not matter
  std::uint8_t protocol = 0;           ///< IPPROTO_UDP, IPPROTO_TCP; 0: unknown, and rules on ports do not match
  std::uint16_t source_port = 0;       ///< host order
  std::uint16_t destination_port = 0;  ///< host order
  std::optional<uid_t> uid{};          ///< the socket's owner; nothing: this process's user

  bool operator==(const PathQuery&) const = default;
  [[nodiscard]] std::size_t hash() const;
};

enum class PathType : std::uint8_t {
  unicast,      ///< by `oif` to `next_hop`
  local,        ///< to an address of this host: the kernel delivers
  broadcast,    ///< by `oif`; kernel sockets of this host get a copy from the kernel only
  multicast,    ///< by `oif`; kernel sockets of this host get a copy from the kernel only
  unreachable,  ///< a send fails with `error`
};

/// What a TCP connection takes from its route (RTAX_*); 0: not set.
struct TcpMetrics {
  std::uint32_t advmss = 0;      ///< bytes
  std::uint32_t window = 0;      ///< largest to announce, bytes
  std::uint32_t initcwnd = 0;    ///< segments
  std::uint32_t initrwnd = 0;    ///< segments
  std::uint32_t rto_min_ms = 0;  ///< milliseconds
  std::uint32_t features = 0;    ///< RTAX_FEATURE_*: 1 ECN
  bool quickack = false;

  bool operator==(const TcpMetrics&) const = default;
};

/// The kernel's decision.
struct Path {
  PathType type = PathType::unreachable;
  int error = 0;             ///< errno of a send while unreachable (ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL), else 0
  bool kernel_only = false;  ///< encapsulated (LWT), or IPsec policies exist: only the kernel can send it
  int oif = 0;               ///< interface index; of a local path the loopback's or the VRF's
  IpAddress source{};        ///< what the packet carries; unspecified: none fits
  IpAddress next_hop;        ///< the destination itself when on link; may be IPv6 for an IPv4 destination (RFC 5549)
  bool has_gateway = false;  ///< next_hop is a router
  std::uint32_t mtu = 0;     ///< bytes of IP packet: link's, route's or path MTU, whichever counts
  bool depends_on_ports = false;  ///< the paths of other ports between the same addresses may differ
  bool mtu_locked = false;        ///< the route forbids path MTU discovery: fragment, no DF
  std::uint8_t hop_limit = 0;  ///< the route's, or the interface's or namespace's default; a socket's own comes first
  TcpMetrics tcp;

  bool operator==(const Path&) const = default;
};

}  // namespace ringsock::net

template <>
struct std::hash<ringsock::net::PathQuery> {
  std::size_t operator()(const ringsock::net::PathQuery& query) const noexcept { return query.hash(); }
};
