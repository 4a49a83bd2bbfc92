#include "core/ethernet/destination_cache.h"

#include <algorithm>
#include <cstring>

#include "core/base/abandon.h"

namespace ringsock::ethernet {

namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;

std::uint32_t host_hash_of(const SocketAddress& address) {
  std::uint64_t words[2] = {};
  if (address.family() == AF_INET) {
    words[0] = address.in4().sin_addr.s_addr;
  } else {
    std::memcpy(words, &address.in6().sin6_addr, sizeof words);
  }
  return static_cast<std::uint32_t>(((words[0] * kOdd) ^ words[1]) * kOdd >> 32);
}

std::uint32_t with_port(std::uint32_t host_hash, std::uint16_t port) {
  return host_hash ^ static_cast<std::uint32_t>((port + 1U) * kOdd >> 32);
}

}  // namespace

Destination& DestinationCache::find_or_add(const SocketAddress& address, const WayControl* control,
                                           std::uint8_t protocol) {
  const std::uint32_t host_hash = host_hash_of(address);
  const std::uint32_t hash = with_port(host_hash, address.port());
  const auto is_it = [&](const Entry& one) { return one.hash == hash && one.destination->is(address, control); };
  const auto found = std::find_if(entries_.begin(), entries_.end(), is_it);
  if (found != entries_.end()) {
    std::rotate(entries_.begin(), found, found + 1);
  } else {
    if (entries_.size() == kMost) entries_.pop_back();
    entries_.insert(entries_.begin(), {hash, host_hash, std::make_unique<Destination>(address, control, protocol)});
  }
  return front();
}

const Destination* DestinationCache::find_way_for(const Destination& wanted, const net::NetworkState& network,
                                                  std::uint32_t options_generation) const {
  const std::uint32_t host_hash = host_hash_of(wanted.address());
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) {
    return one.host_hash == host_hash && one.destination->shares_way_with(wanted) &&
           one.destination->is_current(network, options_generation);
  });
  return found != entries_.end() ? found->destination.get() : nullptr;
}

void DestinationCache::forget_after_fork() noexcept { abandon(entries_); }

}  // namespace ringsock::ethernet
