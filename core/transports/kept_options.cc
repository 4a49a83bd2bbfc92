#include "core/transports/kept_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/user_memory.h"

namespace ringsock::transports {

namespace {

bool is_ways_socket_option(int name) {
  if (name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW) return true;
  switch (name) {
    case SO_REUSEADDR:
    case SO_REUSEPORT:
    case SO_BROADCAST:
    case SO_SNDBUF:
    case SO_RCVBUF:
    case SO_SNDBUFFORCE:
    case SO_RCVBUFFORCE:
    case SO_KEEPALIVE:
    case SO_LINGER:
    case SO_RCVLOWAT:
    case SO_RCVTIMEO:
    case SO_SNDTIMEO: return true;
    default: return false;
  }
}

bool is_ways_tcp_option(int name) {
  switch (name) {
    case TCP_NODELAY:
    case TCP_CORK:
    case TCP_KEEPIDLE:
    case TCP_KEEPINTVL:
    case TCP_KEEPCNT:
    case TCP_QUICKACK:
    case TCP_CONGESTION:
    case TCP_USER_TIMEOUT:
    case TCP_INQ: return true;
    default: return false;
  }
}

/// Returns whether the kernel gives an accepted socket what its listener was given.
bool is_inherited(int level, int name) {
  if (level == SOL_SOCKET) return name != SO_PRIORITY;
  return level != IPPROTO_TCP || (name != TCP_DEFER_ACCEPT && name != TCP_FASTOPEN);
}

}  // namespace

bool is_ways_option(int level, int name) {
  if (level == SOL_SOCKET) return is_ways_socket_option(name);
  return level == IPPROTO_TCP && is_ways_tcp_option(name);
}

void KeptOptions::keep(int level, int name, const void* value, socklen_t length, Time time) noexcept try {
  if (length > kMostBytes) return;
  Option kept{level, name, time, length, {}};
  if (const auto* const bytes = static_cast<const std::byte*>(value)) {
    // The kernel may have read an int only.
    if (!is_readable(bytes, length)) kept.length = sizeof(int);
    kept.value.assign(bytes, bytes + kept.length);
  }
  const std::lock_guard guard(lock_);
  if (!options_) options_ = std::make_unique<Options>();
  std::erase_if(*options_, [&](const Option& one) { return one.level == level && one.name == name; });
  if (options_->size() < kMostOptions) options_->push_back(std::move(kept));
} catch (const std::bad_alloc&) {
}

void KeptOptions::inherit(const KeptOptions& listener) noexcept try {
  std::unique_ptr<Options> copy;
  {
    const std::lock_guard guard(listener.lock_);
    if (!listener.options_) return;
    copy = std::make_unique<Options>(*listener.options_);
  }
  std::erase_if(*copy, [](const Option& one) { return !is_inherited(one.level, one.name); });
  const std::lock_guard guard(lock_);
  options_ = std::move(copy);
} catch (const std::bad_alloc&) {
}

void KeptOptions::give_to(int fd, Time time) const noexcept {
  const int saved_errno = errno;
  const std::lock_guard guard(lock_);
  if (!options_) return;
  for (const Option& one : *options_) {
    if (one.time != time) continue;
    ::setsockopt(fd, one.level, one.name, one.value.empty() ? nullptr : one.value.data(), one.length);
  }
  errno = saved_errno;
}

bool KeptOptions::has_any(int level, bool (*is_one)(int name)) const noexcept {
  const std::lock_guard guard(lock_);
  if (!options_) return false;
  return std::any_of(options_->begin(), options_->end(),
                     [&](const Option& one) { return one.level == level && is_one(one.name); });
}

}  // namespace ringsock::transports
