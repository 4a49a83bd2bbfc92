// Destinations whose listener did not answer recently.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

#include "core/device/shm/names/lately.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

/// Remembers listeners that are stopped, or whose queue stays full, so that only the first client waits and later ones
/// with another way use that at once. Threads: any.
class SilentPorts {
 public:
  static constexpr Nanos kRemembered{1'000'000'000};

  void remember(const PortBinding& destination, Nanos now) {
    known_.remember(Name(destination), true, now + kRemembered);
  }
  [[nodiscard]] bool has(const PortBinding& destination) const { return known_.find(Name(destination)).has_value(); }

 private:
  /// The bytes that identify a destination.
  class Name {
   public:
    explicit Name(const PortBinding& destination) {
      const SocketAddress& address = destination.address;
      const bool is_v4 = address.family() == AF_INET;
      const std::uint32_t space_and_port = address.port() | static_cast<std::uint32_t>(destination.space) << 16;
      const void* const host = is_v4 ? static_cast<const void*>(&address.in4().sin_addr) : &address.in6().sin6_addr;
      const std::size_t host_bytes = is_v4 ? sizeof(in_addr) : sizeof(in6_addr);
      std::memcpy(bytes_, &space_and_port, sizeof space_and_port);
      std::memcpy(bytes_ + sizeof space_and_port, host, host_bytes);
      size_ = sizeof space_and_port + host_bytes;
    }
    operator std::string_view() const { return {bytes_, size_}; }

   private:
    char bytes_[sizeof(std::uint32_t) + sizeof(in6_addr)];
    std::size_t size_;
  };

  Lately known_;
};

}  // namespace ringsock::soft
