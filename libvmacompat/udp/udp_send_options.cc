#include "libvmacompat/udp/udp_send_options.h"

#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/udp/udp_options.h"

namespace ringsock::vma {

ethernet::SendOptions send_options_of(int fd, int family, const MulticastInterface& multicast) {
  ethernet::SendOptions out;
  out.multicast_interface = multicast.ifindex;
  out.multicast_source = multicast.address;
  out.bound_interface = bound_interface_of(fd);
  out.mark = static_cast<std::uint32_t>(option_of(fd, SOL_SOCKET, SO_MARK, 0));
  constexpr int kTimesOfSent =
      SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK;
  out.wants_times = (option_of(fd, SOL_SOCKET, SO_TIMESTAMPING, 0) & kTimesOfSent) != 0;
  if (family == AF_INET) {
    out.traffic_class = static_cast<std::uint8_t>(option_of(fd, IPPROTO_IP, IP_TOS, 0));
    out.hop_limit = option_of(fd, IPPROTO_IP, IP_TTL, -1);
    out.multicast_hop_limit = option_of(fd, IPPROTO_IP, IP_MULTICAST_TTL, 1);
    out.loops_multicast = option_of(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1) != 0;
    const int discover = option_of(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    out.forbids_fragments = discover == IP_PMTUDISC_WANT || discover == IP_PMTUDISC_DO || discover == IP_PMTUDISC_PROBE;
  } else {
    out.traffic_class = static_cast<std::uint8_t>(option_of(fd, IPPROTO_IPV6, IPV6_TCLASS, 0));
    out.hop_limit = option_of(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, -1);
    out.multicast_hop_limit = option_of(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 1);
    out.loops_multicast = option_of(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1) != 0;
  }
  return out;
}

}  // namespace ringsock::vma
