// socket(2) of libvma: which sockets may come to use rings.
#include <netinet/in.h>

#include <cerrno>
#include <new>

#include "core/runtime/spin_policy.h"
#include "libvmacompat/udp_socket.h"
#include "preload/route.h"

namespace ringsock::vma {
namespace {

/// VMA_RX_POLL's default is 100,000 polls, some 50 to 100 ns each.
constexpr Nanos kPollingTime = std::chrono::milliseconds(10);

void start_once() {
  static const bool started = [] {
    runtime::set_spin_policy({.polling_time = kPollingTime});
    return true;
  }();
  static_cast<void>(started);
}

bool may_use_rings(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_DGRAM) return false;
  return protocol == 0 || protocol == IPPROTO_UDP;
}

/// Where we cannot help it stays what it is.
void take_in(int fd, int domain, int type) {
  const int saved_errno = errno;
  try {
    start_once();
    runtime::Ref socket(new UdpSocket(domain, fd));
    socket->set_nonblocking((type & SOCK_NONBLOCK) != 0);
    [[maybe_unused]] const Status entered = runtime::fd_table().insert(fd, std::move(socket));
  } catch (const std::bad_alloc&) {
  }
  errno = saved_errno;
}

}  // namespace
}  // namespace ringsock::vma

using namespace ringsock;

RS_INTERCEPT int socket(int domain, int type, int protocol) {
  const int fd = preload::real.socket(domain, type, protocol);
  if (fd >= 0 && vma::may_use_rings(domain, type, protocol)) vma::take_in(fd, domain, type);
  return fd;
}
