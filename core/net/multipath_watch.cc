#include "core/net/multipath_watch.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace ringsock::net {

namespace {

constexpr char kByAddresses = '0';
constexpr char kUnknown = '?';
constexpr std::array kPaths = {"/proc/sys/net/ipv4/fib_multipath_hash_policy",
                               "/proc/sys/net/ipv6/fib_multipath_hash_policy"};

}  // namespace

void MultipathWatch::open() {
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    policies_[i].file = out_of_the_way(UniqueFd(::open(kPaths[i], O_RDONLY | O_CLOEXEC)));
    // ENOENT: a kernel without multipath routes.
    policies_[i].is_unknown = !policies_[i].file && errno != ENOENT;
    policies_[i].last_read.store(read(policies_[i]), std::memory_order_relaxed);
  }
}

char MultipathWatch::read(const Policy& policy) {
  if (!policy.file) return policy.is_unknown ? kUnknown : kByAddresses;
  char value = kUnknown;
  return ::pread(policy.file.get(), &value, 1, 0) == 1 ? value : kUnknown;
}

bool MultipathWatch::distributes_by_ports(int family) {
  Policy& policy = policies_[family == AF_INET6 ? 1 : 0];
  const char now = read(policy);
  policy.last_read.store(now, std::memory_order_relaxed);
  return now != kByAddresses;
}

bool MultipathWatch::has_changed() {
  bool changed = false;
  for (Policy& policy : policies_) {
    const char now = read(policy);
    changed = policy.last_read.exchange(now, std::memory_order_relaxed) != now || changed;
  }
  return changed;
}

}  // namespace ringsock::net
