// Members of the Extra API that concern rings of sockets.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/members.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/extra_api/ring_descriptors.h"
#include "libvmacompat/extra_api/with_socket.h"

namespace ringsock::vma::rings {

namespace {

/// Returns whether the descriptor is open in this process.
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

/// Returns whether the library carries it as a stream.
bool is_stream(int fd) {
  const runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
  return socket && !socket->is_datagram() && socket->as_epoll_set() == nullptr;
}

/// Returns whether the descriptor's socket is one on Ethernet rings.
bool may_use_rings(int fd) {
  return extra::api_call([&]() -> Result<int> {
           const runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
           return socket && ring_user_of(*socket) != nullptr ? 1 : 0;
         }) == 1;
}

Result<int> fill_in(std::span<const std::shared_ptr<ethernet::Ring>> rings, int* out) {
  for (std::size_t i = 0; i < rings.size(); ++i) {
    const auto fd = ring_descriptors().of(rings[i]);
    if (!fd) return fd;
    out[i] = *fd;
  }
  return static_cast<int>(rings.size());
}

Result<int> moderate(const vma_modify_ring_attr& wish) {
  const auto& [packets, period] = wish.cq_moderation;
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint16_t>::max();  // ibv_modify_cq(3) has these, too
  if (packets > kMost || period > kMost) return Error{EINVAL, "vma_modify_ring: moderation"};
  const auto ring = ring_of_descriptor(wish.ring_fd);
  if (ring == nullptr) return Error{EBADFD, "vma_modify_ring: no ring"};
  ring->moderate({.packets = static_cast<std::uint16_t>(packets), .period = std::chrono::microseconds(period)});
  return 0;
}

}  // namespace

int get_socket_rings_num(int fd) {
  if (!may_use_rings(fd)) return extra::get_socket_rings_num(fd);
  return extra::api_call([&] {
    return with_socket(
        fd, 0, [](RingSocket& socket) -> Result<int> { return static_cast<int>(socket.receiving_rings().size()); });
  });
}

int get_socket_rings_fds(int fd, int* ring_fds, int room) {
  if (!may_use_rings(fd)) return extra::get_socket_rings_fds(fd, ring_fds, room);
  return extra::api_call([&]() -> Result<int> {
    if (ring_fds == nullptr || room <= 0) return Error{EINVAL, "get_socket_rings_fds"};
    return with_socket(fd, 0, [&](RingSocket& socket) -> Result<int> {
      const auto rings = socket.receiving_rings();
      const std::size_t count = std::min(rings.size(), static_cast<std::size_t>(room));
      if (!are_writable(ring_fds, count)) return Error{EFAULT, "get_socket_rings_fds"};
      return fill_in(std::span(rings).first(count), ring_fds);
    });
  });
}

int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t length) {
  return extra::api_call([&]() -> Result<int> {
    constexpr Error kBad{EINVAL, "get_socket_tx_ring_fd"};
    if (is_stream(fd)) return Error{ENOSYS, "get_socket_tx_ring_fd: a stream"};
    if (to == nullptr || !is_readable(to, std::min<std::size_t>(length, sizeof(sockaddr_storage)))) return kBad;
    return with_socket(fd, kBad, [&](RingSocket& socket) -> Result<int> {
      const auto address = SocketAddress::from(to, length);
      if (!address) return kBad;
      const auto ring = socket.sending_ring(*address);
      return ring != nullptr ? ring_descriptors().of(ring) : Error{ENODATA, "get_socket_tx_ring_fd"};
    });
  });
}

int get_socket_network_header(int fd, void* room, std::uint16_t* length) {
  return extra::api_call([&]() -> Result<int> {
    constexpr Error kNotConnected{ENOTCONN, "get_socket_network_header"};
    if (length == nullptr || !are_writable(length) || !is_open(fd)) return Error{EINVAL, "get_socket_network_header"};
    return with_socket(fd, kNotConnected, [&](RingSocket& socket) -> Result<int> {
      const auto headers = socket.headers_to_peer();
      if (headers.empty()) return kNotConnected;
      if (room != nullptr) {
        if (*length < headers.size()) return Error{ENOBUFS, "get_socket_network_header"};
        if (!is_writable(room, headers.size())) return Error{EFAULT, "get_socket_network_header"};
        std::memcpy(room, headers.data(), headers.size());
      }
      *length = static_cast<std::uint16_t>(headers.size());
      return 0;
    });
  });
}

int vma_modify_ring(vma_modify_ring_attr* wish) {
  return extra::api_call([&]() -> Result<int> {
    constexpr std::uint32_t kKnown = VMA_MODIFY_RING_CQ_MODERATION | VMA_MODIFY_RING_CQ_ARM;
    if (wish == nullptr) return Error{EINVAL, "vma_modify_ring"};
    if (!are_readable(wish)) return Error{EFAULT, "vma_modify_ring"};
    const std::uint32_t mask = wish->comp_bit_mask;
    if ((mask & kKnown) == 0 || (mask & ~kKnown) != 0) return Error{EINVAL, "vma_modify_ring: mask"};
    if ((mask & VMA_MODIFY_RING_CQ_ARM) != 0) return Error{EOPNOTSUPP, "vma_modify_ring: queues of a card"};
    return moderate(*wish);
  });
}

}  // namespace ringsock::vma::rings
