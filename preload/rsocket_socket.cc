// socket(2) of librspreload: which sockets may come to be rsockets.
#include <cerrno>
#include <new>

#include "librsocket/process.h"
#include "preload/offload.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

/// A kernel socket that may come to be carried by a ring. Where we cannot help it stays what it is.
void take_in(int fd, int domain, int type) {
  try {
    auto* dual = new DualSocket(rs::process(), domain, fd);
    runtime::Ref socket(dual);
    dual->close_on_exec.store((type & SOCK_CLOEXEC) != 0);
    dual->set_nonblocking((type & SOCK_NONBLOCK) != 0);
    [[maybe_unused]] const Status entered = fd_table().insert(fd, std::move(socket));
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int socket(int domain, int type, int protocol) {
  const int fd = real.socket(domain, type, protocol);
  if (fd < 0) return fd;
  // The first one reads the configuration.
  const int saved_errno = errno;
  if (may_offload(domain, type, protocol)) take_in(fd, domain, type);
  errno = saved_errno;
  return fd;
}

RS_BY_NUMBER(socket);
