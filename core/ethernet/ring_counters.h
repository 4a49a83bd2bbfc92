// The counters of a ring.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringsock::ethernet {

enum class RingCount : std::size_t {
  rx_packets,  ///< updated by Ring::refresh_statistics(), as all that the device counts
  rx_bytes,
  rx_dropped,            ///< packets without a buffer, or without a socket
  device_drops,          ///< packets that the device dropped
  interrupts_requested,  ///< sleeps
  interrupts_received,   ///< wake-ups
  tx_packets,
  tx_bytes,
  tx_joined,           ///< datagrams of bursts that left together with others
  tx_trains,           ///< sends that carried them
  tx_dropped,          ///< packets for which the device had no room
  drained_max,         ///< most packets taken at a time
  buffers,             ///< of the ring: posted and spare ones
  moderation_packets,  ///< Ring::moderate()
  moderation_period_us,
};
inline constexpr std::size_t kRingCounts = 15;

/// The counters of one ring. Their user decides where they are stored: libvma's are in its statistics page. Threads:
/// plain loads and stores; a receiver and a sender may count at the same time, because they use different counters.
class RingCounters {
 public:
  using Counter = std::atomic<std::uint64_t>;

  RingCounters(const RingCounters&) = delete;
  RingCounters& operator=(const RingCounters&) = delete;
  virtual ~RingCounters() = default;

  void count(RingCount which, std::uint64_t amount = 1) { set(which, value(which) + amount); }
  void set(RingCount which, std::uint64_t amount) { place(which).store(amount, std::memory_order_relaxed); }
  void raise(RingCount which, std::uint64_t amount) {
    if (amount > value(which)) set(which, amount);
  }
  [[nodiscard]] std::uint64_t value(RingCount which) const { return place(which).load(std::memory_order_relaxed); }

 protected:
  RingCounters() = default;
  /// Sets the place of a counter. Called for each of RingCount before anything is counted.
  void put(RingCount which, Counter& where) { places_[static_cast<std::size_t>(which)] = &where; }

 private:
  [[nodiscard]] Counter& place(RingCount which) const { return *places_[static_cast<std::size_t>(which)]; }
  std::array<Counter*, kRingCounts> places_{};
};

/// Counters in private memory.
class PrivateRingCounters final : public RingCounters {
 public:
  PrivateRingCounters() {
    for (std::size_t i = 0; i < kRingCounts; ++i) put(static_cast<RingCount>(i), counters_[i]);
  }

 private:
  std::array<Counter, kRingCounts> counters_{};
};

}  // namespace ringsock::ethernet
