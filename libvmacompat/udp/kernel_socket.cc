#include "libvmacompat/udp/kernel_socket.h"

#include <poll.h>
#include <sys/stat.h>

#include <cerrno>

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;

ino_t inode_of(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 ? about.st_ino : 0;
}

}  // namespace

KernelSocket::KernelSocket(int domain, int fd, unsigned polls_per_look, runtime::VmaSocketStatistics& statistics)
    : statistics_(statistics), domain_(domain), inode_(inode_of(fd)), polls_per_look_(polls_per_look), fd_(fd) {}

Result<ssize_t> KernelSocket::receive(msghdr& message, int flags) {
  polls_.store(0, std::memory_order_relaxed);
  // Taken back before the look: another thread may expect a datagram that comes behind it.
  const bool was_expected = hint_.load(std::memory_order_relaxed);
  if (was_expected) hint_.store(false, std::memory_order_relaxed);
  const ssize_t got = ::recvmsg(fd(), &message, flags | MSG_DONTWAIT);
  if (got >= 0) {
    expect_datagram();  // there may be more
    statistics_.count(Count::rx_os_packets);
    statistics_.count(Count::rx_os_bytes, static_cast<std::uint64_t>(got));
    return got;
  }
  const Error error = Error::last("recvmsg");
  const bool looked = error.code == EAGAIN && (flags & MSG_ERRQUEUE) == 0;
  if (was_expected && !looked) expect_datagram();
  if (error.code != EAGAIN) statistics_.count(Count::rx_os_errors);
  return error;
}

std::uint32_t KernelSocket::events() noexcept {
  const int saved_errno = errno;
  polls_.store(0, std::memory_order_relaxed);
  hint_.store(false, std::memory_order_relaxed);  // before the look, as in receive()
  pollfd entry{fd(), POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int ready = ::poll(&entry, 1, 0);
  errno = saved_errno;
  const auto events = ready > 0 ? static_cast<std::uint32_t>(static_cast<std::uint16_t>(entry.revents)) : 0;
  if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) expect_datagram();
  return events;
}

Result<ssize_t> KernelSocket::send(const msghdr& message, int flags) {
  const ssize_t sent = ::sendmsg(fd(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    const Error error = Error::last("sendmsg");
    if (error.code == EAGAIN) is_full_.store(true, std::memory_order_relaxed);
    statistics_.count(error.code == EAGAIN ? Count::tx_os_eagains : Count::tx_os_errors);
    return error;
  }
  statistics_.count(Count::tx_os_packets);
  statistics_.count(Count::tx_os_bytes, static_cast<std::uint64_t>(sent));
  return sent;
}

}  // namespace ringsock::vma
