#include "core/net/networks.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <mutex>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/unique_fd.h"
#include "core/net/netlink_kernel.h"

namespace ringsock::net {

namespace {

#ifdef SO_NETNS_COOKIE
constexpr int kNetnsCookie = SO_NETNS_COOKIE;
#else
constexpr int kNetnsCookie = 71;  // Linux 5.14
#endif

[[gnu::constructor]] void install_fork_handlers() {
  networks();
  at_fork(
      ForkStep::networks, [] { networks().before_fork(); }, [] { networks().after_fork_in_parent(); },
      [] { networks().after_fork_in_child(); });
}

}  // namespace

Result<std::uint64_t> network_namespace_of(int socket_fd) {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  if (::getsockopt(socket_fd, SOL_SOCKET, kNetnsCookie, &cookie, &length) == 0) return cookie;
  if (errno != ENOPROTOOPT) return Error::last("network namespace");
  const UniqueFd place(::ioctl(socket_fd, SIOCGSKNS));
  struct stat facts {};
  if (!place || ::fstat(place.get(), &facts) != 0) return Error::last("network namespace");
  return facts.st_ino;  // unique as long as the namespace is held, e.g. by this socket
}

Result<std::shared_ptr<NetworkState>> Networks::of_socket(int socket_fd) {
  const auto place = network_namespace_of(socket_fd);
  if (!place) return place.error();
  const std::lock_guard guard(lock_);
  if (const auto found = states_.find(*place); found != states_.end()) {
    if (auto state = found->second.lock()) return state;
  }
  auto kernel = NetlinkKernel::open(*place);
  if (!kernel) return kernel.error();
  auto state = NetworkState::open(std::move(*kernel));
  if (!state) return state.error();
  std::erase_if(states_, [](const auto& entry) { return entry.second.expired(); });
  states_.insert_or_assign(*place, *state);
  return *state;
}

void Networks::before_fork() {
  lock_.lock();
  for (const auto& [place, state] : states_) {
    if (auto held = state.lock()) across_fork_.push_back(std::move(held));
  }
  for (const auto& state : across_fork_) state->before_fork();
}

void Networks::after_fork_in_parent() {
  for (const auto& state : across_fork_) state->after_fork_in_parent();
  const auto held = std::exchange(across_fork_, {});
  lock_.unlock();
}

void Networks::after_fork_in_child() {
  for (const auto& state : across_fork_) state->after_fork_in_child();
  const auto held = std::exchange(across_fork_, {});
  lock_.unlock();
}

}  // namespace ringsock::net
