// Identification numbers of datagrams that are cut into fragments. Sources: RFC 6864 (IPv4), RFC 7739 (IPv6).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/wire/ip.h"

namespace ringsock::engine {

/// SipHash-2-4, a hash that cannot be predicted without the key. Source: Aumasson, Bernstein, "SipHash: a fast
/// short-input PRF", 2012.
std::uint64_t keyed_hash(const std::array<std::uint64_t, 2>& key, std::span<const std::byte> message);

/// Identification numbers. A number repeats only after 2^16 (2^32) datagrams of the same source, destination and
/// protocol. The numbers do not reveal how much is sent elsewhere: each flow has a secret start, and flows share
/// counters (RFC 7739, 5.3).
///
/// A datagram that is never cut on its way (kIpv4DontFragment) needs no number (RFC 6864, 4.1) and is sent with 0.
///
/// Threads: any, at the same time. fork(2): a child needs an object of its own, or it repeats its parent's numbers.
class IdentificationNumbers {
 public:
  /// @param secret 32 random bytes from getrandom(2)
  explicit IdentificationNumbers(const std::array<std::uint64_t, 4>& secret)
      : start_key_{secret[0], secret[1]}, counter_key_{secret[2], secret[3]} {}

  std::uint16_t next(wire::Be32 source, wire::Be32 destination, std::uint8_t protocol);
  std::uint32_t next(const wire::Ipv6Address& source, const wire::Ipv6Address& destination);

 private:
  /// Enough that flows rarely share a counter, in 8 KiB.
  static constexpr std::size_t kCounters = 2048;

  std::uint32_t next(std::span<const std::byte> flow);

  std::array<std::uint64_t, 2> start_key_;
  std::array<std::uint64_t, 2> counter_key_;
  std::array<std::atomic<std::uint32_t>, kCounters> counters_{};
};

}  // namespace ringsock::engine
