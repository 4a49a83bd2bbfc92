// The way from a call of the Extra API to the library.
#pragma once

#include <cerrno>

#include "core/base/at_fork.h"
#include "core/base/posix_edge.h"
#include "core/base/result.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/library_call.h"
#include "libvmacompat/process/api_socket.h"
#include "libvmacompat/process/ring_user.h"

namespace ringsock::vma::extra {

/// Carries out a call of the application. `body` returns a Result<int>. Handlers of signals wait for its end. A child
/// that was made without our fork handlers may use none of the locks, and gets EIO.
template <class Body>
int api_call(Body body) {
  return runtime::as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      if (!is_known_process()) return Error{EIO, "the Extra API in a copied process"};
      return body();
    });
  });
}

/// Returns `body(ApiSocket&)` for a socket that may use rings, otherwise `if_none`.
template <class Body>
Result<int> with_socket(int fd, Result<int> if_none, Body body) {
  runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
  if (!socket) return if_none;
  socket.pin();
  RingUser* const user = socket->as_ring_user();
  return user != nullptr ? body(user->api()) : if_none;
}

}  // namespace ringsock::vma::extra
