// What the parts of a connection share.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "core/base/biased_mutex.h"
#include "core/verbs/device.h"
#include "librsocket/connection_ends.h"
#include "librsocket/overflow_areas.h"
#include "librsocket/queue_settings.h"

namespace ringsock::rs {

/// A connection's device, its ends, its overflow areas, and the lock of what happens with its completions.
///
/// Threads: poll_lock serialises the processing of completions, and is the innermost lock. `settings` and `qp` do not
/// change after the connection has been made.
struct ConnectionCore {
  ConnectionCore(verbs::Device& its_device, const QueueSettings& its_settings)
      : device(its_device), settings(its_settings) {}

  [[nodiscard]] bool is_suspended() const { return (state.load(std::memory_order_relaxed) & kSuspended) != 0; }
  /// Returns whether the application's function sees received bytes first (StreamCallback).
  [[nodiscard]] bool shows_first() const { return (state.load(std::memory_order_relaxed) & kShowsFirst) != 0; }
  /// Returns whether a receive gets nothing, whatever has come: one of the two above.
  [[nodiscard]] bool holds_back() const {
    return (state.load(std::memory_order_relaxed) & (kSuspended | kShowsFirst)) != 0;
  }
  /// Returns whether a send goes through Corking.
  [[nodiscard]] bool corks() const { return (state.load(std::memory_order_relaxed) & kCorks) != 0; }
  /// Returns whether a send is not posted at once.
  [[nodiscard]] bool holds_back_sends() const {
    return (state.load(std::memory_order_relaxed) & (kSuspended | kCorks)) != 0;
  }
  static constexpr std::uint8_t kSuspended = 1;
  static constexpr std::uint8_t kShowsFirst = 2;
  static constexpr std::uint8_t kCorks = 4;
  void set(std::uint8_t flag, bool on, std::memory_order order) {
    on ? state.fetch_or(flag, order) : state.fetch_and(static_cast<std::uint8_t>(~flag), order);
  }

  // One cache line, which each message uses.
  alignas(64) BiasedMutex poll_lock;
  ConnectionEnds ends;
  std::atomic<std::uint8_t> state{0};  ///< kSuspended: Connection::suspend()
  verbs::Device& device;
  ibv_qp* qp = nullptr;  ///< QueuePairMemory's

  OverflowAreas overflow;
  QueueSettings settings;
};

}  // namespace ringsock::rs
