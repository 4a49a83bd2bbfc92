#include "core/device/shm/datagrams/sender_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "core/base/libc_calls.h"
#include "core/base/rare_calls.h"
#include "core/base/socket_protocol.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

namespace {

/// Returns whether what the socket sends to its own host has that source.
bool sends_as(int fd, const SocketAddress& source) {
  const auto name = name_by(::getsockname, fd, "datagrams: getsockname");
  if (!name) return false;
  const SocketAddress bound = canonical_address(*name);
  return bound.port() == source.port() && (bound.is_wildcard() || bound == source);
}

}  // namespace

Result<UniqueFd> borrow_socket(const SenderSocket& sender, const SocketAddress& source) {
  if (sender.process <= 0 || sender.descriptor < 0) return Error{EBADF, "datagrams: the sender's socket"};
  if (!is_permitted(RareCall::pidfd_open) || !is_permitted(RareCall::pidfd_getfd))
    return Error{EACCES, "datagrams: pidfd_getfd"};
  const UniqueFd process(static_cast<int>(libc_calls.syscall(SYS_pidfd_open, sender.process, 0, 0, 0, 0, 0)));
  if (!process) return Error::last("datagrams: pidfd_open");
  UniqueFd socket(static_cast<int>(libc_calls.syscall(SYS_pidfd_getfd, process.get(), sender.descriptor, 0, 0, 0, 0)));
  if (!socket) return Error::last("datagrams: pidfd_getfd");
  if (!has_protocol(socket.get(), IPPROTO_UDP) || !sends_as(socket.get(), source))
    return Error{EPROTO, "datagrams: another socket"};
  return socket;
}

}  // namespace ringsock::soft
