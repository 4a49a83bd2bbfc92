#include "libvmacompat/tcp/detour.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "core/base/socket_memory.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/tcp/short_lives.h"

namespace ringsock::vma {

namespace {

/// Returns how many packets the kernel's socket has dropped, 0 where Linux does not tell.
std::uint32_t drops_of(int fd) {
  const auto memory = socket_memory(fd);
  return memory ? (*memory)[SK_MEMINFO_DROPS] : 0;
}

/// What IP_PKTOPTIONS gives with IP_PKTINFO set.
int interface_of_packet_options(int fd) {
  std::array<std::byte, CMSG_SPACE(sizeof(in_pktinfo))> room{};
  socklen_t length = room.size();
  if (::getsockopt(fd, IPPROTO_IP, IP_PKTOPTIONS, room.data(), &length) != 0) return 0;
  msghdr message{};
  message.msg_control = room.data();
  message.msg_controllen = length;
  const cmsghdr* const part = CMSG_FIRSTHDR(&message);
  if (part == nullptr || part->cmsg_level != IPPROTO_IP || part->cmsg_type != IP_PKTINFO) return 0;
  in_pktinfo info{};
  std::memcpy(&info, CMSG_DATA(part), sizeof info);
  return info.ipi_ifindex;
}

std::uint64_t key_of(SocketAddress peer) {
  peer.set_port(0);
  return ShortLives::place_of(peer);
}

}  // namespace

// In a socket that the kernel makes for a SYN, the interface for multicast is the one by which the peer's last segment
// of the handshake came.
int interface_of_handshake(int fd) {
  if (option_of(fd, SOL_SOCKET, SO_DOMAIN, AF_INET) == AF_INET6)
    return option_of(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, 0);
  const int before = option_of(fd, IPPROTO_IP, IP_PKTINFO, 0), on = 1;
  if (before == 0 && ::setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) != 0) return 0;
  const int index = interface_of_packet_options(fd);
  if (before == 0) ::setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &before, sizeof before);
  return index;
}

void Detour::begin(int fd) {
  *this = Detour();
  drops_ = drops_of(fd);
}

bool Detour::is_found(int fd, const Segments& segments, Nanos now) {
  const bool is_silent = segments.in == segments_.in;
  if (!is_silent || segments.out != segments_.out) wait_ = kShortest;
  segments_ = segments;
  if (now - asked_ < (is_silent ? wait_ : kWhileTheRingGetsSome)) return false;
  asked_ = now;
  wait_ = std::min(2 * wait_, kLongest);
  const std::uint32_t drops = drops_of(fd);
  const std::uint32_t more = drops - drops_;
  drops_ = drops;
  return more > (is_silent ? 0 : kStrays);
}

Detours& detours() { return process_state<Detours>(); }

std::uint32_t Detours::known(std::uint64_t peer, Nanos now) const {
  const Slot& slot = slots_[peer % kSlots];
  const bool is_known =
      slot.peer.load(std::memory_order_relaxed) == peer && now - slot.noted.load(std::memory_order_relaxed) < kMemory;
  return is_known ? slot.found.load(std::memory_order_relaxed) : 0;
}

bool Detours::are_expected(const SocketAddress& peer, Nanos now) const { return known(key_of(peer), now) >= kEnough; }

void Detours::note(const SocketAddress& peer, Nanos now) {
  const std::uint64_t key = key_of(peer);
  const std::uint32_t found = std::min(known(key, now) + 1, kEnough);
  Slot& slot = slots_[key % kSlots];
  slot.peer.store(key, std::memory_order_relaxed);
  slot.found.store(found, std::memory_order_relaxed);
  slot.noted.store(now, std::memory_order_relaxed);
}

}  // namespace ringsock::vma
