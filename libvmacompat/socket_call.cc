// socket(2) of libvma: which sockets may come to use rings.
#include <netinet/in.h>

#include <cerrno>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/rare_calls.h"
#include "libvmacompat/process.h"
#include "libvmacompat/udp_socket.h"
#include "preload/route.h"

namespace ringsock::vma {
namespace {

bool may_use_rings(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_DGRAM) return false;
  if (protocol != 0 && protocol != IPPROTO_UDP) return false;
  return is_known_process() && are_ethernet_rings_permitted() && process().may_use_rings(SOCK_DGRAM);
}

/// Where we cannot help it stays what it is.
void take_in(int fd, int domain, int type) {
  try {
    runtime::Ref socket(new UdpSocket(domain, fd));
    socket->set_nonblocking((type & SOCK_NONBLOCK) != 0);
    [[maybe_unused]] const Status entered = runtime::fd_table().insert(fd, std::move(socket));
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace
}  // namespace ringsock::vma

using namespace ringsock;

RS_INTERCEPT int socket(int domain, int type, int protocol) {
  const int fd = preload::real.socket(domain, type, protocol);
  if (fd < 0) return fd;
  // The first one reads the configuration.
  const int saved_errno = errno;
  if (vma::may_use_rings(domain, type, protocol)) vma::take_in(fd, domain, type);
  errno = saved_errno;
  return fd;
}

RS_BY_NUMBER(socket);
