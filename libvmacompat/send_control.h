// Control data of datagrams to be sent: sendmsg(2), ip(7), ipv6(7), udp(7).
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "core/net/ip_address.h"

namespace ringsock::vma {

/// How one datagram goes another way, or with other headers, than the socket's options say.
struct WayControl {
  net::IpAddress source{};  ///< IP_PKTINFO, IPV6_PKTINFO; unspecified: the socket's
  int ifindex = 0;          ///< the same; 0: by the route
  int traffic_class = -1;   ///< IP_TOS, IPV6_TCLASS; -1: the socket's
  int hop_limit = -1;       ///< IP_TTL, IPV6_HOPLIMIT; likewise
  bool operator==(const WayControl&) const = default;
};

struct SendControl {
  WayControl way;
  int family = AF_UNSPEC;           ///< of the only destinations that it fits, if there is something in `way`
  std::uint16_t segment_bytes = 0;  ///< UDP_SEGMENT
  bool has_segment_bytes = false;
};

/// What message.msg_control says; the values are in range. Nothing: there is something that only the kernel knows, or
/// that it has to refuse.
std::optional<SendControl> read_send_control(const msghdr& message);

}  // namespace ringsock::vma
