#include "libvmacompat/kernel_return.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "core/wire/checksum.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::vma {

namespace {

/// The sum may be one that a sender on this host has left to a device: made anew, or left out where that is allowed.
void renew_checksum(std::span<std::byte> packet, const UdpFrame& frame) {
  const std::size_t udp_offset = frame.udp_offset - frame.ip_offset;
  const std::span<std::byte> udp = packet.subspan(udp_offset);
  const std::size_t checksum_offset = offsetof(wire::UdpHeader, checksum);
  wire::Be16 checksum{};
  std::memcpy(&udp[checksum_offset], &checksum, sizeof checksum);
  if (frame.family == AF_INET) return;
  constexpr std::size_t kAddressesOffset = 8, kAddressesBytes = 32;
  checksum = wire::InternetSum()
                 .add(packet.subspan(kAddressesOffset, kAddressesBytes))
                 .add(wire::Be16(static_cast<std::uint16_t>(udp.size())))
                 .add(wire::Be16(wire::kIpProtocolUdp))
                 .add(udp)
                 .checksum();
  if (checksum.host() == 0) checksum = wire::Be16(0xffff);
  std::memcpy(&udp[checksum_offset], &checksum, sizeof checksum);
}

}  // namespace

int KernelReturn::raw_socket(int family) {
  UniqueFd& socket = family == AF_INET ? v4_ : v6_;
  if (!socket) socket = UniqueFd(::socket(family, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
  return socket.get();
}

bool KernelReturn::give(const Arrival& arrival) {
  const int fd = raw_socket(arrival.frame.family);
  if (fd < 0) return false;
  const std::size_t bytes = arrival.frame.payload_offset() + arrival.frame.payload_bytes - arrival.frame.ip_offset;
  const auto original = arrival.bytes().subspan(arrival.frame.ip_offset, bytes);
  std::vector<std::byte> packet(original.begin(), original.end());
  renew_checksum(packet, arrival.frame);
  SocketAddress to = destination_of(arrival.bytes(), arrival.frame, arrival.ifindex);
  to.set_port(0);
  return ::sendto(fd, packet.data(), packet.size(), MSG_DONTWAIT, to.get(), to.length()) ==
         static_cast<ssize_t>(packet.size());
}

}  // namespace ringsock::vma
