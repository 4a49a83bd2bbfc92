// Destinations whose listener did not answer of late.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string_view>

#include "core/base/clock.h"
#include "core/device/soft/cm/port_name.h"

namespace ringsock::soft {

/// So that only the first client waits for a listener that is stopped, or whose queue stays full, and those who have
/// another way go it at once. Bounded, and forgetful: of two destinations that share a place the newer one is known.
/// Threads: any.
class SilentPorts {
 public:
  static constexpr Nanos kRemembered{1'000'000'000};

  void remember(const PortBinding& destination, Nanos now) {
    const std::size_t key = key_of(destination);
    Place& place = places_[key % places_.size()];
    place.key.store(key, std::memory_order_relaxed);
    place.until.store(now + kRemembered, std::memory_order_relaxed);
  }
  [[nodiscard]] bool has(const PortBinding& destination) const {
    const std::size_t key = key_of(destination);
    const Place& place = places_[key % places_.size()];
    const Nanos until = place.until.load(std::memory_order_relaxed);
    // The clock is asked only where anything is remembered.
    return until != Nanos::zero() && place.key.load(std::memory_order_relaxed) == key && monotonic_now() < until;
  }

 private:
  struct Place {
    std::atomic<std::size_t> key{0};
    std::atomic<Nanos> until{Nanos::zero()};
  };
  static std::size_t key_of(const PortBinding& destination) {
    const SocketAddress& address = destination.address;
    const auto* const bytes = reinterpret_cast<const char*>(
        address.family() == AF_INET ? static_cast<const void*>(&address.in4().sin_addr) : &address.in6().sin6_addr);
    const std::string_view host(bytes, address.family() == AF_INET ? sizeof(in_addr) : sizeof(in6_addr));
    const std::size_t port = address.port() | static_cast<std::size_t>(destination.space) << 16;
    return std::hash<std::string_view>{}(host)*31 + port;
  }

  std::array<Place, 64> places_;
};

}  // namespace ringsock::soft
