// One entry of the kernel's neighbour table: the MAC address of a next hop.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/net/ip_address.h"
#include "core/net/mac_address.h"

namespace ringsock::net {

/// NUD_* of linux/neighbour.h by name.
enum class NeighbourState : std::uint8_t {
  none,        ///< the kernel has no entry
  incomplete,  ///< the kernel is asking
  reachable,
  stale,      ///< usable; ask again while in use
  delay,      ///< usable; the kernel will ask soon
  probe,      ///< usable; the kernel is asking
  failed,     ///< nobody answered: sends get EHOSTUNREACH until the kernel is asked again
  no_arp,     ///< no resolution is needed: multicast, broadcast, links without ARP
  permanent,  ///< it was configured
};

/// The state and MAC address of a neighbour at one moment.
struct NeighbourFacts {
  NeighbourState state = NeighbourState::none;
  MacAddress mac{};

  /// Returns whether packets may be sent to `mac`.
  [[nodiscard]] bool is_usable() const { return state >= NeighbourState::reachable && state != NeighbourState::failed; }
  bool operator==(const NeighbourFacts&) const = default;
};

/// A next hop on a link, kept up to date by its NetworkState. Senders share it. It stays valid as long as they hold it,
/// even when the kernel or NetworkState forgets it. Threads: any.
class Neighbour {
 public:
  Neighbour(int ifindex, const IpAddress& address, const NeighbourFacts& facts = {});
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  [[nodiscard]] int ifindex() const { return ifindex_; }
  [[nodiscard]] const IpAddress& address() const { return address_; }

  /// Costs one relaxed load, so the state and the MAC address belong together.
  [[nodiscard]] NeighbourFacts facts() const noexcept;

  /// Returns whether the kernel has told of it; facts() means nothing before.
  [[nodiscard]] bool is_known() const noexcept { return is_known_.load(std::memory_order_acquire); }

  /// Notes that the neighbour is in use; a sender calls it with each packet or burst. Returns true once each time that
  /// the kernel's entry went stale while nobody used it. The sender then calls NetworkState::request_resolution() to
  /// have the kernel confirm the entry, because packets that bypass the kernel do not confirm it. (NetworkState itself
  /// confirms an entry in use.) Costs one load.
  [[nodiscard]] bool needs_refresh() noexcept { return !in_use_.load(std::memory_order_relaxed) && begin_use(); }

 private:
  friend class NeighbourTable;

  bool begin_use() noexcept;
  /// For NeighbourTable only. @return whether senders are affected: the MAC, the usability or the failure changed
  bool update(const NeighbourFacts& facts) noexcept;
  /// @return whether a sender has used it since the last call
  bool take_use() noexcept { return in_use_.exchange(false, std::memory_order_seq_cst); }

  const int ifindex_;
  const IpAddress address_;
  std::atomic<std::uint64_t> packed_;  ///< MAC in the low 48 bits, state above
  std::atomic<bool> in_use_{false};
  std::atomic<bool> is_known_{false};
};

}  // namespace ringsock::net
