// Members of the Extra API that tell of the rings of sockets with memory of their own (shared_rings.h).
#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/api_socket.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/members.h"
#include "core/extra_api/shared_rings.h"
#include "core/runtime/fd_table.h"

namespace ringsock::vma::extra {

namespace {

/// Returns whether the descriptor's socket has, or would have, such a ring.
bool has_shared_ring(int fd) {
  if (!are_shared_rings_wanted()) return false;
  runtime::FdTable::Lookup found = runtime::fd_table().find(fd);
  ApiSocket* const socket = found ? found->as_api_socket() : nullptr;
  if (socket == nullptr) return false;
  found.pin();
  return socket->polled_stream() != nullptr;
}

}  // namespace

int get_socket_rings_num(int fd) {
  return api_call([&]() -> Result<int> { return has_shared_ring(fd) ? 1 : 0; });
}

int get_socket_rings_fds(int fd, int* ring_fds, int room) {
  return api_call([&]() -> Result<int> {
    if (ring_fds == nullptr || room <= 0) return Error{EINVAL, "get_socket_rings_fds"};
    if (!has_shared_ring(fd)) return 0;
    if (!are_writable(ring_fds)) return Error{EFAULT, "get_socket_rings_fds"};
    const auto ring = shared_ring_descriptor(fd);
    if (!ring) return ring;
    *ring_fds = *ring;
    return 1;
  });
}

}  // namespace ringsock::vma::extra
