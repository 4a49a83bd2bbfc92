// Members of the Extra API that give packets in buffers of the rings to the program: the receive callback, and
// receiving without copying.
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "core/base/socket_protocol.h"
#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/api_socket.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/lent_packets.h"
#include "core/extra_api/members.h"
#include "core/extra_api/packet_list.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"

namespace ringsock::vma::extra {

namespace {

constexpr Error kNoSocket{EINVAL, "the Extra API: the library does not carry the descriptor"};
constexpr int kOurFlags = MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE;
ApiSocket* socket_of(runtime::FdTable::Lookup& endpoint) { return endpoint ? endpoint->as_api_socket() : nullptr; }

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

Result<ApiSocket::Received> attempt(ApiSocket& socket, const ZeroCopy& call, PacketList& list, int flags) {
  iovec part{call.room, call.bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_name = call.from;
  message.msg_namelen = call.from != nullptr ? *call.from_length : 0;
  auto got = socket.receive_packets(list, message, flags & ~kOurFlags, (flags & MSG_VMA_ZCOPY_FORCE) != 0);
  const bool has_name = got && got->as != ApiSocket::Received::As::nothing && call.from != nullptr;
  if (has_name) *call.from_length = message.msg_namelen;
  return got;
}

/// @param is_ours  becomes false when nothing was received because the kernel has the socket now
Result<int> receive(runtime::Endpoint& endpoint, ApiSocket& socket, const ZeroCopy& call, bool& is_ours) {
  using As = ApiSocket::Received::As;
  if (Status fine = check(call); !fine) return fine.error();
  const int flags = *call.flags;
  PacketList list(call.room, call.bytes);
  auto got = attempt(socket, call, list, flags);
  if (!got && !endpoint.is_nonblocking() && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0) {
    const Nanos deadline = runtime::deadline_after(endpoint.receive_timeout());
    if (runtime::would_block(got))
      got = runtime::retry_until_ready(endpoint, EPOLLIN, deadline, [&] { return attempt(socket, call, list, flags); });
    got = runtime::keeping(deadline, got);
  }
  if (!got) return got.error();
  is_ours = got->as != As::nothing;
  if (!is_ours) return 0;
  if (got->as == As::packets) {
    *call.flags = MSG_VMA_ZCOPY | (list.is_cut() ? MSG_TRUNC : 0);
  } else {
    *call.flags &= ~kOurFlags;
  }
  return static_cast<int>(got->bytes);
}

/// Returns the packet behind `one` in a list, as recvfrom_zcopy() writes them.
const vma_packet_t* next_of(const vma_packet_t* one) {
  const std::size_t parts = one->sz_iov;
  return reinterpret_cast<const vma_packet_t*>(reinterpret_cast<std::uintptr_t>(one) + sizeof *one +
                                               parts * sizeof(iovec));
}

/// Frees packets up to the first one that `take_back(id)` refuses.
template <class TakeBack>
Result<int> free_list(const vma_packet_t* packets, std::size_t count, TakeBack take_back) {
  const vma_packet_t* one = packets;
  for (std::size_t left = count; left > 0; --left) {
    if (!are_readable(one)) return Error{EFAULT, "free_packets"};
    const vma_packet_t* const next = left > 1 ? next_of(one) : nullptr;
    if (!take_back(one->packet_id)) return Error{ENOENT, "free_packets"};
    one = next;
  }
  return 0;
}

bool take_left_back(const void* id) { return lent_packets().take_back(LentPackets::kLeft, id); }

/// Frees packets on a descriptor that the library does not carry: those of a connection that the kernel has now.
Result<int> free_left(const vma_packet_t* packets, std::size_t count) {
  const bool is_ours = count != 0 && packets != nullptr && are_readable(packets);
  if (!is_ours || !lent_packets().is_lent(LentPackets::kLeft, packets->packet_id)) return kNoSocket;
  return free_list(packets, count, take_left_back);
}

/// Returns whether the kernel carries a TCP connection instead of the library, which the program cannot know.
bool is_stream_of_kernel(int fd) {
  return library_of_extra_api().has_moving_connections() && has_protocol(fd, IPPROTO_TCP);
}

}  // namespace

int register_recv_callback(int fd, vma_recv_callback_t callback, void* context) {
  return api_call([&]() -> Result<int> {
    runtime::FdTable::Lookup endpoint = runtime::fd_table().find(fd);
    ApiSocket* const socket = socket_of(endpoint);
    if (socket == nullptr) return is_stream_of_kernel(fd) ? Result<int>(0) : kNoSocket;
    endpoint.pin();
    const Status set = socket->set_callback(callback, context);
    return set ? Result<int>(0) : set.error();
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
    ApiSocket* const socket = socket_of(endpoint);
    is_ours = socket != nullptr;
    if (!is_ours) return 0;
    endpoint.pin();
    return receive(*endpoint, *socket, {room, bytes, flags, from, from_length}, is_ours);
  });
  if (is_ours) [[likely]]
    return got;
  // No call of the library is under way here: this one may wait. A connection may have left its ring between two calls.
  const int kernels_flags = *flags & ~kOurFlags;
  const ApiLibrary& library = library_of_extra_api();
  if (library.has_moving_connections()) *flags = kernels_flags;
  return static_cast<int>(library.receive_by_kernel(fd, room, bytes, kernels_flags, from, from_length));
}

int free_packets(int fd, vma_packet_t* packets, std::size_t count) {
  return api_call([&]() -> Result<int> {
    runtime::FdTable::Lookup endpoint = runtime::fd_table().find(fd);
    ApiSocket* const socket = socket_of(endpoint);
    if (socket == nullptr) return free_left(packets, count);
    endpoint.pin();
    if (count == 0) return 0;
    if (packets == nullptr) return Error{EINVAL, "free_packets"};
    const auto freed = free_list(packets, count, [&](const void* id) {
      // Another thread may give the connection to the kernel meanwhile.
      return lent_packets().take_back(socket->lender(), id) ||
             (endpoint->as_api_socket() == nullptr && take_left_back(id));
    });
    socket->packets_freed();
    return freed;
  });
}

}  // namespace ringsock::vma::extra
