// A UDP socket's entry in the statistics page.
#include <netinet/in.h>

#include <utility>
#include <vector>

#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/udp/udp_options.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

void UdpSocket::describe() {
  const int fd = kernel_.fd();
  const int loops = kernel_.domain() == AF_INET ? option_of(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1)
                                                : option_of(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
  std::vector<SocketAddress> groups;
  for (const Membership& one : flows_.groups().memberships()) groups.push_back(one.group.with_port(0));
  statistics_.describe({.fd = fd,
                        .inode = kernel_.inode(),
                        .is_offloaded = flows_.attached().any(),
                        .is_blocking = !is_nonblocking(),
                        .multicast_loop = loops != 0,
                        .local = flows_.names().local,
                        .peer = flows_.names().peer,
                        .groups = std::move(groups),
                        .ring_user_id_rx = queue_.ring_user_id(),
                        .ring_user_id_tx = sender_.ring_user_id()});
  statistics_.set(runtime::VmaSocketLevel::ready_byte_limit, queue_.limit());
}

}  // namespace ringsock::vma
