#include "libvmacompat/udp/kernel_return.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <span>
#include <vector>

#include "core/wire/frame_layout.h"

namespace ringsock::vma {

int KernelReturn::raw_socket(int family) {
  UniqueFd& socket = family == AF_INET ? v4_ : v6_;
  if (!socket) socket = out_of_the_way(UniqueFd(::socket(family, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)));
  return socket.get();
}

bool KernelReturn::give(const ethernet::Arrival& arrival) {
  const int fd = raw_socket(arrival.layout.is_ipv6 ? AF_INET6 : AF_INET);
  if (fd < 0) return false;
  const std::size_t end = arrival.layout.payload + arrival.layout.payload_bytes;
  const auto original = arrival.bytes().first(end);
  std::vector<std::byte> frame(original.begin(), original.end());
  // A sender on this host may have left the checksum to a device.
  wire::fill_checksums(frame);
  const auto packet = std::span(frame).subspan(arrival.layout.ip);
  SocketAddress to = wire::destination_of(arrival.bytes(), arrival.layout, arrival.ifindex);
  to.set_port(0);
  return ::sendto(fd, packet.data(), packet.size(), MSG_DONTWAIT, to.get(), to.length()) ==
         static_cast<ssize_t>(packet.size());
}

}  // namespace ringsock::vma
