#include "libvmacompat/process/kernel_options.h"

#include <net/if.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>

namespace ringsock::vma {

int option_of(int fd, int level, int name, int if_unknown) {
  int value = if_unknown;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : if_unknown;
}

Nanos time_out_of(int fd, int name) {
  timeval time{};
  socklen_t length = sizeof time;
  if (::getsockopt(fd, SOL_SOCKET, name, &time, &length) != 0) return Nanos::max();
  const Nanos limit = std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  return limit == Nanos::zero() ? Nanos::max() : limit;
}

int bound_interface_of(int fd) {
  const int index = option_of(fd, SOL_SOCKET, SO_BINDTOIFINDEX, -1);
  if (index >= 0) return index;
  char name[IFNAMSIZ]{};  // Linux before 5.1
  socklen_t length = sizeof name;
  if (::getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length) != 0 || name[0] == '\0') return 0;
  return static_cast<int>(::if_nametoindex(name));
}

int buffer_locks_of([[maybe_unused]] int fd) {
#ifdef SO_BUF_LOCK
  return option_of(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
#else
  return 0;
#endif
}

bool has_filter(int fd) {
  socklen_t instructions = 0;
  // Programs of eBPF cannot be read: EACCES.
  if (::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, nullptr, &instructions) != 0 || instructions != 0) return true;
  return option_of(fd, SOL_SOCKET, SO_LOCK_FILTER, 0) != 0;
}

}  // namespace ringsock::vma
