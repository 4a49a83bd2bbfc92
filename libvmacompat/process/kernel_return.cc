#include "libvmacompat/process/kernel_return.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <span>
#include <vector>

#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_layout.h"

namespace ringsock::vma {

int KernelReturn::raw_socket(int family) {
  UniqueFd& socket = family == AF_INET ? v4_ : v6_;
  if (!socket) socket = out_of_the_way(UniqueFd(::socket(family, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)));
  return socket.get();
}

bool KernelReturn::send(int family, std::span<std::byte> frame, std::size_t ip_at, SocketAddress to) {
  const int fd = raw_socket(family);
  if (fd < 0) return false;
  // A sender on this host may have left the checksum to a device.
  wire::fill_checksums(frame);
  const auto packet = frame.subspan(ip_at);
  to.set_port(0);
  return ::sendto(fd, packet.data(), packet.size(), MSG_DONTWAIT, to.get(), to.length()) ==
         static_cast<ssize_t>(packet.size());
}

bool KernelReturn::give(const ethernet::Arrival& arrival) {
  const auto original = arrival.bytes().first(arrival.layout.payload + arrival.layout.payload_bytes);
  std::vector<std::byte> frame(original.begin(), original.end());
  return send(arrival.layout.is_ipv6 ? AF_INET6 : AF_INET, frame, arrival.layout.ip,
              wire::destination_of(arrival.bytes(), arrival.layout, arrival.ifindex));
}

bool KernelReturn::give(std::span<std::byte> frame, const SocketAddress& to) {
  return send(to.family(), frame, sizeof(wire::EthernetHeader), to);
}

}  // namespace ringsock::vma
