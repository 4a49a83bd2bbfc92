#include "libvmacompat/udp/udp_api.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/ethernet/bursts.h"
#include "core/ethernet/interface.h"
#include "core/extra_api/packet_list.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

namespace {
constexpr int kErrorsToo = MSG_ERRQUEUE | MSG_OOB;
}  // namespace

std::vector<std::shared_ptr<ethernet::Ring>> UdpApi::receiving_rings() {
  const std::lock_guard guard(flows_.setup_lock());
  return flows_.attached().rings();
}

RingUser* UdpApi::as_ring_user() noexcept { return &socket_; }

/// A destination that is new may bring answers by a new ring.
std::shared_ptr<ethernet::Ring> UdpApi::sending_ring(const SocketAddress& destination) {
  const PolledRings::News news(rings_);
  return sender_.ring_to(destination);
}

std::vector<std::byte> UdpApi::headers_to_peer() {
  const PolledRings::News news(rings_);
  return sender_.headers_to_peer();
}

/// As UdpSocket::receive(), but datagrams of rings stay in their buffers.
Result<ApiSocket::Received> UdpApi::receive_packets(PacketList& list, msghdr& message, int flags, bool never_copies) {
  if (socket_.is_closed()) return Error{EBADF, "recvfrom_zcopy: closed meanwhile"};
  ethernet::Bursts::note_receive();
  if (!socket_.queue_.has_older() && (!rings_.any() || socket_.kernel_.is_due() || (flags & kErrorsToo) != 0)) {
    auto copied = receive_copy(message, flags, never_copies);
    if (copied || copied.error().code != EAGAIN || (flags & kErrorsToo) != 0) return copied;
  }
  if (socket_.progress()) {
    if (!list.has_room_for_head()) return Error{ENOBUFS, "recvfrom_zcopy"};
    if (auto packet = socket_.queue_.whole().take(flags)) return lend(*packet, list, message);
  }
  if (callback_.comes_first(flags)) return Error{ERESTART, "recvfrom_zcopy: the application's callback"};
  const bool may_wait = !socket_.is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  if (may_wait && socket_.read_shut_.load(std::memory_order_relaxed)) return Received{};
  return Error{EAGAIN, "recvfrom_zcopy"};
}

/// Lends a datagram. The program sees only how long it is where the list has no room for its part.
Result<ApiSocket::Received> UdpApi::lend(const ethernet::Arrival& packet, PacketList& list, msghdr& message) {
  const std::span<const std::byte> payload = packet.packet().payload;
  const LentPacket* const lent = lent_packets().lend(lender(), packet.buffer, payload);
  if (lent == nullptr) return Error{ENOBUFS, "recvfrom_zcopy: memory"};
  if (message.msg_name != nullptr) {
    const SocketAddress source = wire::source_of(packet.bytes(), packet.layout, packet.ifindex);
    std::memcpy(message.msg_name, source.get(), std::min(message.msg_namelen, source.length()));
    message.msg_namelen = source.length();
  }
  if (list.has_room()) {
    list.add(*lent, payload);
  } else {
    list.add_cut(*lent);
  }
  return Received{.bytes = static_cast<ssize_t>(packet.layout.payload_bytes), .as = Received::As::packets};
}

// -- cyclic buffers

bool UdpApi::has_cyclic() { return socket_.queue_.whole().has_cyclic(); }

/// Polls the rings until the buffer has `most` datagrams, or they are empty. Others' datagrams may fill them as fast as
/// they are emptied. What may not find room waits in the rings, if `least` are there.
void UdpApi::fill_cyclic(std::size_t least, std::size_t most) {
  constexpr unsigned kMostPolls = 1024;
  constexpr std::size_t kBatch = 16;  // a poll brings no more
  const auto is_done = [=](const CyclicBuffer& buffer) {
    const std::size_t free = buffer.free_strides();
    return buffer.has(most) || free == 0 || (free < kBatch && buffer.has(least));
  };
  for (unsigned left = kMostPolls; left > 0 && !socket_.queue_.whole().with_cyclic(is_done); --left) {
    if (rings_.poll(nullptr) != ethernet::Ring::Look::some) return;
  }
}

Result<RingSocket::CyclicBatch> UdpApi::read_cyclic(std::size_t least, std::size_t most, bool wants_time) {
  if (socket_.is_closed()) return Error{EBADF, "vma_cyclic_buffer_read: closed meanwhile"};
  ethernet::Bursts::note_receive();
  WholeDatagrams& whole = socket_.queue_.whole();
  if (wants_time) {
    const std::lock_guard guard(flows_.setup_lock());
    flows_.want_times();
  }
  whole.with_cyclic([](CyclicBuffer& buffer) { return buffer.begin_read(), 0; });
  fill_cyclic(least, most);
  return whole.with_cyclic([&](CyclicBuffer& buffer) -> Result<CyclicBatch> {
    if (!buffer.has(least)) return Error{EAGAIN, "vma_cyclic_buffer_read"};
    const CyclicBuffer::Batch batch = buffer.take(most);
    return CyclicBatch{batch.packets, batch.payload, batch.headers, batch.time};
  });
}

Result<RingSocket::CyclicMemory> UdpApi::cyclic_memory() {
  const std::lock_guard guard(flows_.setup_lock());
  const auto rings = flows_.attached().rings();
  if (rings.empty()) return Error{ENODATA, "get_mem_info: no ring"};
  return socket_.queue_.whole().with_cyclic([&](CyclicBuffer& buffer) -> Result<CyclicMemory> {
    const auto key = buffer.key(rings.front()->interface().shared_from_this());
    if (!key) return key.error();
    return CyclicMemory{buffer.memory(), *key};
  });
}

Result<ApiSocket::Received> UdpApi::receive_copy(msghdr& message, int flags, bool never_copies) {
  if (never_copies) {
    const bool has_datagram = (socket_.kernel_.events() & EPOLLIN) != 0;
    return has_datagram ? Error{EIO, "recvfrom_zcopy: the kernel's datagram"} : Error{EAGAIN, "recvfrom_zcopy"};
  }
  const auto copied = socket_.receive_from_kernel(message, flags);
  return copied ? Result<Received>(Received{.bytes = *copied}) : copied.error();
}

}  // namespace ringsock::vma
