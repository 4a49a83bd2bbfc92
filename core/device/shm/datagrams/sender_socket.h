// The UDP socket of a sender of this host, which a receiver may borrow.
#pragma once

#include <sys/types.h>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// Where the socket is.
struct SenderSocket {
  pid_t process = 0;    ///< as the kernel says
  int descriptor = -1;  ///< as the sender says; -1: unknown
  bool operator==(const SenderSocket&) const = default;
};

/// Returns a duplicate of the sender's socket (pidfd_getfd(2)), by which a datagram gets to the kernel with `source` as
/// its source. It keeps the port from being free: the caller closes it soon.
/// Errors: those of pidfd_open(2) and pidfd_getfd(2), such as ESRCH, EBADF, or EPERM where ptrace(2) is not permitted;
/// EACCES a seccomp filter forbids these; EPROTO it is another socket by now. Threads: any.
Result<UniqueFd> borrow_socket(const SenderSocket& sender, const SocketAddress& source);

}  // namespace ringsock::soft
