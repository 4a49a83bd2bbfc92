// SocketXtreme: members of the Extra API that give a program the packets of all sockets of a ring.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/notice.h"
#include "core/base/user_memory.h"
#include "core/ethernet/interface.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/lent_packets.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/extra_api/ring_descriptors.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma::rings {

namespace {

/// Carries out `body()` if VMA_SOCKETXTREME is set.
template <class Body>
int event_call(Body body) {
  return extra::api_call([&]() -> Result<int> {
    if (process().config.socketxtreme) [[likely]]
      return body();
    if (is_first(Notice::no_socketxtreme))
      process().log.write(config::VmaLogLevel::warning, "the functions of SocketXtreme need VMA_SOCKETXTREME=1");
    return Error{EOPNOTSUPP, "SocketXtreme"};
  });
}

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

/// The packets may outlive the ring's sockets.
void keep_buffers(ethernet::Interface& interface) { lent_packets().keep(interface); }

/// Fills in completions with datagrams until the ring has no more, or there is no room.
Result<int> collect_datagrams(int ring_fd, vma_completion_t* out, unsigned room) {
  constexpr unsigned kAtATime = 16;
  std::array<ethernet::SinkEvent, kAtATime> events;
  unsigned filled = 0;
  while (filled < room) {
    const unsigned wanted = std::min(room - filled, kAtATime);
    const auto found = collect_events(ring_fd, std::span(events).first(wanted), keep_buffers);
    if (!found) return filled > 0 ? Result<int>(static_cast<int>(filled)) : Error{EBADFD, "socketxtreme_poll: no ring"};
    for (ethernet::SinkEvent& event : std::span(events).first(*found)) {
      if (describe(event, out[filled])) ++filled;
      event.packet.reset();
    }
    if (*found < wanted) break;
  }
  return static_cast<int>(filled);
}

/// The same with events of TCP sockets, too. Taking packets from the ring also feeds connections.
Result<int> collect(int ring_fd, std::span<vma_completion_t> out) {
  const auto [ring, streams] = polled_ring_of_descriptor(ring_fd);
  if (ring == nullptr) return Error{EBADFD, "socketxtreme_poll: no ring"};
  std::size_t filled = streams->come_first() ? streams->collect(out) : 0;
  if (filled < out.size()) {
    const auto datagrams =
        collect_datagrams(ring_fd, out.subspan(filled).data(), static_cast<unsigned>(out.size() - filled));
    if (!datagrams) return filled > 0 ? Result<int>(static_cast<int>(filled)) : datagrams;
    filled += static_cast<std::size_t>(*datagrams);
  }
  if (filled < out.size()) filled += streams->collect(out.subspan(filled));
  return static_cast<int>(filled);
}

/// Drops one reference of each of the packet's buffers.
Result<int> free_one(const vma_packet_desc_t& packet) {
  if (packet.num_bufs == 0) return 0;
  if (!lent_packets().drop_list(packet.buff_lst)) return Error{EINVAL, "socketxtreme_free_vma_packets"};
  return 0;
}

}  // namespace

int socketxtreme_poll(int ring_fd, vma_completion_t* completions, unsigned int count, int) {
  return event_call([&]() -> Result<int> {
    if (completions == nullptr || count == 0) return Error{EINVAL, "socketxtreme_poll"};
    // Only as many as fit are written, so a count beyond the array does no harm until there are as many packets.
    if (!are_writable(completions)) return Error{EFAULT, "socketxtreme_poll"};
    const unsigned room = std::min(count, static_cast<unsigned>(INT32_MAX));
    if (process().config.tcp_rings == 0) return collect_datagrams(ring_fd, completions, room);
    return collect(ring_fd, std::span(completions, room));
  });
}

int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int count) {
  return event_call([&]() -> Result<int> {
    if (packets == nullptr || count < 0) return Error{EINVAL, "socketxtreme_free_vma_packets"};
    for (int i = 0; i < count; ++i) {
      if (!are_readable(&packets[i])) return Error{EFAULT, "socketxtreme_free_vma_packets"};
      if (auto freed = free_one(packets[i]); !freed) return freed;
    }
    return 0;
  });
}

int socketxtreme_ref_vma_buff(vma_buff_t* buffer) {
  return event_call([&]() -> Result<int> {
    const auto left = lent_packets().add_reference(buffer);
    return left ? Result<int>(*left) : Error{EINVAL, "socketxtreme_ref_vma_buff"};
  });
}

int socketxtreme_free_vma_buff(vma_buff_t* buffer) {
  return event_call([&]() -> Result<int> {
    const auto left = lent_packets().drop_reference(buffer);
    return left ? Result<int>(*left) : Error{EINVAL, "socketxtreme_free_vma_buff"};
  });
}

}  // namespace ringsock::vma::rings
