// Members of the Extra API that give packets in buffers of the rings to the program: the receive callback, and
// receiving without copying.
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "core/base/user_memory.h"
#include "core/poll/wait.h"
#include "libvmacompat/extra_api/api_call.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/lent_packets.h"

// recvfrom(2) of the preload library, by the name that the linker does not send to libc (preload/route.h).
extern "C" decltype(recvfrom) ringsock_recvfrom;

namespace ringsock::vma::extra {

namespace {

constexpr Error kNoSocket{EINVAL, "the Extra API: the library does not carry the descriptor"};
constexpr int kOurFlags = MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE;
/// What a list of one packet takes, without and with its one part.
constexpr std::size_t kLeastRoom = sizeof(vma_packets_t) + sizeof(vma_packet_t);
constexpr std::size_t kWholeRoom = kLeastRoom + sizeof(iovec);

// -- receiving

/// The arguments of one recvfrom_zcopy().
struct ZeroCopy {
  void* room;
  std::size_t bytes;
  int* flags;
  sockaddr* from;
  socklen_t* from_length;
};

Status check(const ZeroCopy& call) {
  constexpr Error kBad{EFAULT, "recvfrom_zcopy"};
  if (!is_writable(call.room, call.bytes)) return kBad;
  if (call.from == nullptr) return ok();
  if (call.from_length == nullptr || !are_writable(call.from_length)) return kBad;
  if (static_cast<int>(*call.from_length) < 0) return Error{EINVAL, "recvfrom_zcopy: length"};
  return is_writable(call.from, std::min<socklen_t>(*call.from_length, sizeof(sockaddr_storage))) ? ok() : Status(kBad);
}

/// Writes the list of one packet. There may be no room for its part: then the program sees only how long it is.
void describe(const LentPacket& lent, const ZeroCopy& call) {
  auto* const list = static_cast<vma_packets_t*>(call.room);
  const bool is_whole = call.bytes >= kWholeRoom;
  const iovec part{lent.buffer.payload, lent.buffer.len};
  list->n_packet_num = 1;
  list->pkts[0].packet_id = const_cast<LentPacket*>(&lent);
  list->pkts[0].sz_iov = is_whole ? 1 : 0;
  if (is_whole) std::memcpy(static_cast<std::byte*>(call.room) + kLeastRoom, &part, sizeof part);
  *call.flags = MSG_VMA_ZCOPY | (is_whole ? 0 : MSG_TRUNC);
}

void tell_source(const ethernet::Arrival& packet, const ZeroCopy& call) {
  if (call.from == nullptr) return;
  const SocketAddress source = wire::source_of(packet.bytes(), packet.layout, packet.ifindex);
  std::memcpy(call.from, source.get(), std::min(*call.from_length, source.length()));
  *call.from_length = source.length();
}

Result<ApiSocket::Received> attempt(ApiSocket& socket, const ZeroCopy& call, int flags) {
  iovec part{call.room, call.bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_name = call.from;
  message.msg_namelen = call.from != nullptr ? *call.from_length : 0;
  auto got = socket.receive_packet(message, kLeastRoom, flags & ~kOurFlags, (flags & MSG_VMA_ZCOPY_FORCE) != 0);
  if (got && !got->packet && call.from != nullptr) *call.from_length = message.msg_namelen;
  return got;
}

Result<int> receive(runtime::Endpoint& endpoint, ApiSocket& socket, const ZeroCopy& call) {
  if (Status fine = check(call); !fine) return fine.error();
  const int flags = *call.flags;
  auto got = attempt(socket, call, flags);
  if (!got && !endpoint.is_nonblocking() && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0) {
    const Nanos deadline = runtime::deadline_after(endpoint.receive_timeout());
    if (runtime::would_block(got))
      got = runtime::retry_until_ready(endpoint, EPOLLIN, deadline, [&] { return attempt(socket, call, flags); });
    got = runtime::keeping(deadline, std::move(got));
  }
  if (!got) return got.error();
  if (!got->packet) {
    *call.flags &= ~kOurFlags;
    return static_cast<int>(got->bytes);
  }
  const ethernet::Arrival& packet = *got->packet;
  const LentPacket* const lent = lent_packets().lend(socket.lender(), packet.buffer, packet.packet().payload);
  if (lent == nullptr) return Error{ENOBUFS, "recvfrom_zcopy: memory"};
  tell_source(packet, call);
  describe(*lent, call);
  return static_cast<int>(got->bytes);
}

/// Returns the packet behind `one` in a list, as recvfrom_zcopy() writes them.
const vma_packet_t* next_of(const vma_packet_t* one) {
  const std::size_t parts = one->sz_iov;
  return reinterpret_cast<const vma_packet_t*>(reinterpret_cast<std::uintptr_t>(one) + sizeof *one +
                                               parts * sizeof(iovec));
}

/// Frees packets up to the first one that the socket has not lent.
Result<int> free_list(std::uint32_t lender, const vma_packet_t* packets, std::size_t count) {
  const vma_packet_t* one = packets;
  for (std::size_t left = count; left > 0; --left) {
    if (!are_readable(one)) return Error{EFAULT, "free_packets"};
    const vma_packet_t* const next = left > 1 ? next_of(one) : nullptr;
    if (!lent_packets().take_back(lender, one->packet_id)) return Error{ENOENT, "free_packets"};
    one = next;
  }
  return 0;
}

}  // namespace

int register_recv_callback(int fd, vma_recv_callback_t callback, void* context) {
  return api_call([&] {
    return with_socket(fd, kNoSocket, [&](ApiSocket& socket) -> Result<int> {
      socket.set_callback(callback, context);
      return 0;
    });
  });
}

int recvfrom_zcopy(int fd, void* room, std::size_t bytes, int* flags, sockaddr* from, socklen_t* from_length) {
  if (flags == nullptr || !are_writable(flags)) {
    errno = EFAULT;
    return -1;
  }
  bool is_ours = true;
  const int got = api_call([&]() -> Result<int> {
    runtime::FdTable::Lookup endpoint = runtime::fd_table().find(fd);
    RingUser* const user = endpoint ? endpoint->as_ring_user() : nullptr;
    is_ours = user != nullptr;
    if (!is_ours) return 0;
    endpoint.pin();
    return receive(*endpoint, user->api(), {room, bytes, flags, from, from_length});
  });
  if (is_ours) [[likely]]
    return got;
  // No call of the library is under way here: this one may wait.
  return static_cast<int>(ringsock_recvfrom(fd, room, bytes, *flags & ~kOurFlags, from, from_length));
}

int free_packets(int fd, vma_packet_t* packets, std::size_t count) {
  return api_call([&] {
    return with_socket(fd, kNoSocket, [&](ApiSocket& socket) -> Result<int> {
      if (count == 0) return 0;
      return packets != nullptr ? free_list(socket.lender(), packets, count) : Error{EINVAL, "free_packets"};
    });
  });
}

}  // namespace ringsock::vma::extra
