#include "core/transports/kernel_calls.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

#include "core/base/libc_calls.h"
#include "core/base/rare_calls.h"
#include "core/runtime/library_call.h"

namespace ringsock::transports {

void set_kernel_nonblocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL, 0);
  if (flags >= 0) ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

std::uint32_t kernel_events(int fd) noexcept {
  const int saved_errno = errno;
  pollfd entry{fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int ready = ::poll(&entry, 1, 0);
  errno = saved_errno;
  return ready > 0 ? static_cast<std::uint16_t>(entry.revents) : 0;
}

std::uint8_t tcp_state(int fd) noexcept {
  std::uint8_t state = TCP_CLOSE;  // the first field of tcp_info
  socklen_t length = sizeof state;
  const int saved_errno = errno;
  const bool is_told = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) == 0;
  errno = saved_errno;
  return is_told ? state : std::uint8_t{TCP_CLOSE};
}

bool is_in_use(int fd) noexcept { return tcp_state(fd) != TCP_CLOSE; }

Status connect_as_application(int fd, const sockaddr* address, socklen_t length) {
  const runtime::OutsideLibrary waiting_in_kernel;
  if (libc_calls.connect(fd, address, length) != 0) return Error::last("connect");
  return ok();
}

bool is_loopback_down(int fd) {
  if (!is_permitted(RareCall::interface_flags)) return false;
  ifreq interface {};
  std::strcpy(interface.ifr_name, "lo");
  const int saved_errno = errno;
  const bool is_down = ::ioctl(fd, SIOCGIFFLAGS, &interface) == 0 && (interface.ifr_flags & IFF_UP) == 0;
  errno = saved_errno;
  return is_down;
}

}  // namespace ringsock::transports
