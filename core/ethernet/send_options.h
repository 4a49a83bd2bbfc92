// What a socket specifies about sending.
#pragma once

#include <cstdint>

#include "core/net/ip_address.h"

namespace ringsock::ethernet {

/// The socket's options for sending.
struct SendOptions {
  int bound_interface = 0;          ///< SO_BINDTODEVICE
  int multicast_interface = 0;      ///< IP_MULTICAST_IF, IPV6_MULTICAST_IF; 0: from the route
  net::IpAddress multicast_source;  ///< IP_MULTICAST_IF; unspecified: the interface's address
  std::uint32_t mark = 0;           ///< SO_MARK
  std::uint8_t traffic_class = 0;
  int hop_limit = -1;  ///< -1: from the route
  int multicast_hop_limit = 1;
  bool loops_multicast = true;    ///< multicast is looped back to sockets on this host
  bool forbids_fragments = true;  ///< DF: IP_PMTUDISC_WANT, DO, PROBE
  bool wants_times = false;       ///< SO_TIMESTAMPING for sent packets, which only the kernel supports
};

/// Control data that changes the path or the headers of one datagram.
struct WayControl {
  net::IpAddress source{};  ///< IP_PKTINFO, IPV6_PKTINFO; unspecified: the socket's
  int ifindex = 0;          ///< IP_PKTINFO, IPV6_PKTINFO; 0: from the route
  int traffic_class = -1;   ///< IP_TOS, IPV6_TCLASS; -1: the socket's
  int hop_limit = -1;       ///< IP_TTL, IPV6_HOPLIMIT; -1: the socket's
  bool operator==(const WayControl&) const = default;
};

}  // namespace ringsock::ethernet
