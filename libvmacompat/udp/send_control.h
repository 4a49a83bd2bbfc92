// Control data of datagrams to send: sendmsg(2), ip(7), ipv6(7), udp(7).
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "core/ethernet/send_options.h"

namespace ringsock::vma {

struct SendControl {
  ethernet::WayControl way;
  int family = AF_UNSPEC;           ///< of the destinations that `way` applies to; AF_UNSPEC: `way` is empty
  std::uint16_t segment_bytes = 0;  ///< UDP_SEGMENT
  bool has_segment_bytes = false;
};

/// Reads message.msg_control, with all values in range. Returns nothing when there is an item that only the kernel
/// supports, or that it has to refuse.
std::optional<SendControl> read_send_control(const msghdr& message);

}  // namespace ringsock::vma
