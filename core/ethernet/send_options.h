// What a socket says of the way of its datagrams.
#pragma once

#include <cstdint>

#include "core/net/ip_address.h"

namespace ringsock::ethernet {

/// The socket's options about sending.
struct SendOptions {
  int bound_interface = 0;          ///< SO_BINDTODEVICE
  int multicast_interface = 0;      ///< IP_MULTICAST_IF, IPV6_MULTICAST_IF; 0: by the route
  net::IpAddress multicast_source;  ///< IP_MULTICAST_IF; unspecified: the interface's
  std::uint32_t mark = 0;           ///< SO_MARK
  std::uint8_t traffic_class = 0;
  int hop_limit = -1;  ///< -1: by the route
  int multicast_hop_limit = 1;
  bool loops_multicast = true;    ///< sockets of this host get what is sent to a group
  bool forbids_fragments = true;  ///< DF: IP_PMTUDISC_WANT, DO, PROBE
  bool wants_times = false;       ///< SO_TIMESTAMPING, of what is sent: the kernel tells them
};

/// How one datagram goes another way, or with other headers, than the socket's options say.
struct WayControl {
  net::IpAddress source{};  ///< IP_PKTINFO, IPV6_PKTINFO; unspecified: the socket's
  int ifindex = 0;          ///< the same; 0: by the route
  int traffic_class = -1;   ///< IP_TOS, IPV6_TCLASS; -1: the socket's
  int hop_limit = -1;       ///< IP_TTL, IPV6_HOPLIMIT; likewise
  bool operator==(const WayControl&) const = default;
};

}  // namespace ringsock::ethernet
