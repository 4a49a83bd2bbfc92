// SocketXtreme: what a program that polls an Ethernet ring gets.
#include <algorithm>
#include <array>

#include "core/ethernet/interface.h"
#include "core/extra_api/lent_packets.h"
#include "libvmacompat/extra_api/ring_descriptors.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma {

namespace {

void tell_source(const ethernet::Packet& packet, sockaddr_in& out) {
  if (packet.layout.is_ipv6) return;  // there is no room for it
  socklen_t length = sizeof out;
  wire::copy_source(packet.headers, packet.layout, packet.ifindex, AF_INET, reinterpret_cast<sockaddr*>(&out), length);
}

/// Returns false when the packet is lost, for lack of memory.
bool describe(ethernet::SinkEvent& event, vma_completion_t& out) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  out = {};
  out.events = event.events;
  out.user_data = event.user_data;
  if (!event.packet) return true;
  const ethernet::Packet packet = event.packet->packet();
  tell_source(packet, out.src);
  LentPacket* const lent = lent_packets().lend(LentPackets::kNobody, std::move(event.packet->buffer), packet.payload);
  if (lent == nullptr) return false;
  out.events |= VMA_SOCKETXTREME_PACKET;
  out.packet.num_bufs = 1;
  out.packet.total_len = lent->buffer.len;
  out.packet.buff_lst = &lent->buffer;
  out.packet.hw_timestamp = {.tv_sec = packet.time.count() / kSecond, .tv_nsec = packet.time.count() % kSecond};
  return true;
}

}  // namespace

/// Fills in completions with datagrams until the ring has no more, or there is no room.
std::size_t RingDescriptor::collect_datagrams(ethernet::Ring& ring, std::span<vma_completion_t> out) {
  constexpr std::size_t kAtATime = 16;
  std::array<ethernet::SinkEvent, kAtATime> events;
  lent_packets().keep(ring.interface());  // the packets may outlive the ring's sockets
  std::size_t filled = 0;
  while (filled < out.size()) {
    const std::size_t wanted = std::min(out.size() - filled, kAtATime);
    const std::size_t found = events_.collect(ring, std::span(events).first(wanted));
    for (ethernet::SinkEvent& event : std::span(events).first(found)) {
      if (describe(event, out[filled])) ++filled;
      event.packet.reset();
    }
    if (found < wanted) break;
  }
  return filled;
}

/// Taking packets from the ring also feeds connections.
Result<std::size_t> RingDescriptor::collect(std::span<vma_completion_t> out) {
  const auto ring = this->ring();
  if (ring == nullptr) return Error{EBADFD, "socketxtreme_poll: no ring"};
  if (process().config.tcp_rings == 0) return collect_datagrams(*ring, out);
  std::size_t filled = streams_.come_first() ? streams_.collect(out) : 0;
  if (filled < out.size()) filled += collect_datagrams(*ring, out.subspan(filled));
  if (filled < out.size()) filled += streams_.collect(out.subspan(filled));
  return filled;
}

}  // namespace ringsock::vma
