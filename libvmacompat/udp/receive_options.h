// Control data of received datagrams.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "core/ethernet/arrival.h"

namespace ringsock::vma {

/// The options set by setsockopt(2): ip(7), ipv6(7), socket(7).
struct ReceiveOptions {
  bool v4_packet_info = false;       ///< IP_PKTINFO
  bool v4_original_address = false;  ///< IP_RECVORIGDSTADDR
  bool v4_ttl = false;               ///< IP_RECVTTL
  bool v4_tos = false;               ///< IP_RECVTOS
  bool v6_packet_info = false;       ///< IPV6_RECVPKTINFO
  bool v6_hop_limit = false;         ///< IPV6_RECVHOPLIMIT
  bool v6_traffic_class = false;     ///< IPV6_RECVTCLASS
  int time_stamp = 0;                ///< SO_TIMESTAMP(NS)_(OLD|NEW), or 0
  int time_stamping = 0;             ///< SO_TIMESTAMPING_(OLD|NEW), when it asks for the kernel's time, or 0
  bool overflow = false;             ///< SO_RXQ_OVFL

  /// Notes an option that the kernel has accepted. Returns false for any other option.
  bool note(int level, int name, const void* value, socklen_t length);
  [[nodiscard]] bool wants_time() const { return time_stamp != 0 || time_stamping != 0; }
};

/// Writes the items that are set into message.msg_control, and sets msg_controllen. Sets MSG_CTRUNC in msg_flags when
/// some of them have no room.
/// @param dropped  datagrams dropped so far, if options.overflow
void write_control(const ReceiveOptions& options, const ethernet::Packet& datagram, std::uint32_t dropped,
                   msghdr& message);

/// Corrects the number of drops in control data that the kernel has written.
/// @param room     the value of msg_controllen before the call of the kernel
/// @param dropped  datagrams that rings have dropped; added to the kernel's number
/// @param of_kernel_too  false: the datagrams that the kernel has counted were no drops
void add_drops(msghdr& message, std::size_t room, std::uint32_t dropped, bool of_kernel_too);

}  // namespace ringsock::vma
