#include "preload/route.h"

#include <cerrno>

namespace ringsock::preload {

GoesOn goes_on(Lookup& socket, const Error& error, int fd) {
  // No other error means any of this, and of EAGAIN there are many.
  if (error.code != EBADF && error.code != EIO && error.code != EOPNOTSUPP) return GoesOn::nowhere;
  if (runtime::FdTable::is_being_closed(*socket)) [[unlikely]] {
    socket.leave();
    return fd_table().wait_for_close(fd) ? GoesOn::anew : GoesOn::nowhere;
  }
  if (goes_on_by_kernel(socket, error)) return GoesOn::by_kernel;
  return error.code == EIO && hand_overs().has_come_back(*socket) ? GoesOn::anew : GoesOn::nowhere;
}

bool goes_on_by_kernel(Lookup& socket, const Error& error) {
  // The kernel's epoll file under the number has the right error: EINVAL for read(2), ENOTSOCK for recv(2).
  if (error.code == EOPNOTSUPP) return socket->as_epoll_set() != nullptr;
  if (error.code != EIO && error.code != EBADF) return false;
  if (socket->way() == nullptr) {
    socket.pin();
    return socket->has_left_to_kernel() || (error.code == EIO && socket->become_kernels());
  }
  socket.pin();
  return socket->has_left_to_kernel() ||
         (error.code == EIO && hand_overs().follow(*socket) && socket->has_left_to_kernel());
}

bool became_kernels_elsewhere(Lookup& socket) {
  if (socket->way() == nullptr || socket->values.get(runtime::DescriptionValues::is_kernels) == 0) return false;
  return goes_on_by_kernel(socket, Error{EIO, "moved by another process"});
}

bool rest_goes_on_by_kernel(Lookup& socket, int flags) {
  if (socket->is_datagram() || !runtime::may_block(*socket, flags)) return false;
  return goes_on_by_kernel(socket, Error{runtime::why_only_a_part(), "a part of the bytes"});
}

}  // namespace ringsock::preload
