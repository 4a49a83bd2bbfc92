// The destinations that a socket has sent to lately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ethernet/destination.h"

namespace ringsock::ethernet {

/// A sender that answers many peers meets a new name with each datagram, often a new port of a known host. So names are
/// found by hashes that lie side by side, and a new destination takes over the way of another one of its host. Threads:
/// one at a time.
class DestinationCache {
 public:
  static constexpr std::size_t kMost = 64;

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Returns the destination that was used last. There must be one.
  [[nodiscard]] Destination& front() const { return *entries_.front().destination; }
  /// Returns the destination, now the first one; evicts the least recently used one when a new one is needed.
  Destination& find_or_add(const SocketAddress& address, const WayControl* control, std::uint8_t protocol);
  /// Returns a destination whose way is valid now, leads by a ring, and is that of `wanted`, too; null: none.
  [[nodiscard]] const Destination* find_way_for(const Destination& wanted, const net::NetworkState& network,
                                                std::uint32_t options_generation) const;
  void clear() noexcept { entries_.clear(); }
  /// Called in a forked child: the destinations' rings are the parent's.
  void forget_after_fork() noexcept;

 private:
  struct Entry {
    std::uint32_t hash;       ///< of the address with its port
    std::uint32_t host_hash;  ///< of the address without
    std::unique_ptr<Destination> destination;
  };
  std::vector<Entry> entries_;  ///< most recently used first
};

}  // namespace ringsock::ethernet
