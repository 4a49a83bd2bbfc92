// A UDP socket's entry in the statistics page.
#include <netinet/in.h>
#include <sys/stat.h>

#include "libvmacompat/socket_options.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

/// setup_lock_ held.
void UdpSocket::describe() {
  struct stat status {};
  ::fstat(fd(), &status);
  const int loops = domain_ == AF_INET ? option_of(fd(), IPPROTO_IP, IP_MULTICAST_LOOP, 1)
                                       : option_of(fd(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
  std::vector<SocketAddress> groups;
  for (const Membership& one : memberships_) groups.push_back(one.group.with_port(0));
  statistics_.describe({.fd = fd(),
                        .inode = status.st_ino,
                        .is_offloaded = !attachments_.empty(),
                        .is_blocking = !is_nonblocking(),
                        .multicast_loop = loops != 0,
                        .local = local_,
                        .peer = peer_,
                        .groups = std::move(groups),
                        .ring_user_id_rx = receive_choice_.user_id(),
                        .ring_user_id_tx = send_choice_.user_id()});
  statistics_.set(runtime::VmaSocketLevel::ready_byte_limit, receive_limit_);
}

/// receive_lock_ held.
void UdpSocket::show_queue() {
  using Level = runtime::VmaSocketLevel;
  statistics_.set(Level::ready_packets, arrivals_.count());
  statistics_.set(Level::ready_bytes, arrivals_.payload_bytes());
}

}  // namespace ringsock::vma
