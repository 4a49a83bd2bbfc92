// Control data of datagrams to be sent: sendmsg(2), ip(7), ipv6(7), udp(7).
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "core/ethernet/send_options.h"

namespace ringsock::vma {

struct SendControl {
  ethernet::WayControl way;
  int family = AF_UNSPEC;           ///< of the only destinations that it fits, if there is something in `way`
  std::uint16_t segment_bytes = 0;  ///< UDP_SEGMENT
  bool has_segment_bytes = false;
};

/// What message.msg_control says; the values are in range. Nothing: there is something that only the kernel knows, or
/// that it has to refuse.
std::optional<SendControl> read_send_control(const msghdr& message);

}  // namespace ringsock::vma
