// From a descriptor to the socket on Ethernet rings behind it.
#pragma once

#include "core/base/result.h"
#include "core/runtime/fd_table.h"
#include "libvmacompat/process/ring_socket.h"
#include "libvmacompat/process/ring_user.h"

namespace ringsock::vma::rings {

/// Returns `body(RingSocket&)` for a socket that may use Ethernet rings, otherwise `if_none`.
template <class Body>
Result<int> with_socket(int fd, Result<int> if_none, Body body) {
  runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
  if (!socket) return if_none;
  socket.pin();
  RingUser* const user = ring_user_of(*socket);
  return user != nullptr ? body(user->api()) : if_none;
}

}  // namespace ringsock::vma::rings
