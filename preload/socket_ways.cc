#include "preload/socket_ways.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <type_traits>
#include <utility>

#include "preload/route.h"

namespace ringsock::preload {
namespace {

/// Sorted by their reach.
constinit std::array<SocketWay, 3> ways{};
constinit std::atomic<std::size_t> number_of_ways{0};

/// Enters the socket as an endpoint of the first way that carries its kind. Without one it stays the kernel's.
void take_in(int fd, int domain, int type, int protocol) {
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire); ++i) {
    if (!ways[i].may_carry(domain, type, protocol)) continue;
    try {
      runtime::Ref socket = ways[i].make(fd, domain, type);
      socket->set_nonblocking((type & SOCK_NONBLOCK) != 0);
      [[maybe_unused]] const Status entered = fd_table().insert(fd, std::move(socket));
    } catch (const std::bad_alloc&) {
    }
    return;
  }
}

constinit std::atomic<bool> takes_kernels{false};

/// Gives a socket that the kernel has connected to those ways that have the function `take`.
template <class... Arguments>
void give_kernels(void (*SocketWay::*take)(int fd, Arguments...), int fd,
                  std::type_identity_t<Arguments>... arguments) {
  if (fd < 0 || !takes_kernels.load(std::memory_order_relaxed)) [[likely]]
    return;
  const int saved_errno = errno;
  const LibraryCall no_handlers;
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire) && !fd_table().holds(fd); ++i) {
    if (ways[i].*take != nullptr) (ways[i].*take)(fd, arguments...);
  }
  errno = saved_errno;
}

}  // namespace

void add_way(const SocketWay& way) {
  const std::size_t count = number_of_ways.load(std::memory_order_relaxed);
  if (count == ways.size()) return;
  const auto end = ways.begin() + static_cast<std::ptrdiff_t>(count);
  const auto reaches_less = [](const SocketWay& a, const SocketWay& b) { return a.reach < b.reach; };
  const auto place = std::upper_bound(ways.begin(), end, way, reaches_less);
  std::move_backward(place, end, end + 1);
  *place = way;
  number_of_ways.store(count + 1, std::memory_order_release);
  if (way.take_accepted != nullptr) takes_kernels.store(true, std::memory_order_release);
}

void take_accepted(int fd, int flags) { give_kernels(&SocketWay::take_accepted, fd, flags); }
void take_connecting(int fd, const sockaddr* address, socklen_t length, bool stands,
                     const transports::KeptOptions& options) {
  give_kernels(&SocketWay::take_connecting, fd, address, length, stands, options);
}

bool are_ways_send_flags(int flags) noexcept {
  int claimed = 0;
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire); ++i) claimed |= ways[i].send_flags;
  return (flags & claimed) != 0;
}

bool answer_option(int level, int name, void* value, socklen_t* length) {
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire); ++i) {
    if (ways[i].answer_option != nullptr && ways[i].answer_option(level, name, value, length)) return true;
  }
  return false;
}

bool to_kernels_value(int level, int name, const void* value, socklen_t length, std::uint64_t& out) {
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire); ++i) {
    const auto translate = ways[i].to_kernels_value;
    if (translate != nullptr && translate(level, name, value, length, out)) return true;
  }
  return false;
}

bool from_kernels_value(int level, int name, std::uint64_t kernels, void* value, socklen_t length) {
  for (std::size_t i = 0; i < number_of_ways.load(std::memory_order_acquire); ++i) {
    const auto translate = ways[i].from_kernels_value;
    if (translate != nullptr && translate(level, name, kernels, value, length)) return true;
  }
  return false;
}

bool have_streams_user_data() noexcept {
  const auto end = ways.begin() + static_cast<std::ptrdiff_t>(number_of_ways.load(std::memory_order_acquire));
  return std::any_of(ways.begin(), end, [](const SocketWay& way) { return way.has_user_data; });
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int socket(int domain, int type, int protocol) {
  const int fd = real.socket(domain, type, protocol);
  if (fd < 0) return fd;
  drop_stale(fd);
  const int saved_errno = errno;
  {
    const LibraryCall no_handlers;
    take_in(fd, domain, type, protocol);
  }
  errno = saved_errno;
  return fd;
}

RS_BY_NUMBER(socket);
