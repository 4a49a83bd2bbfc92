// Moderation that follows the traffic of a ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/ethernet/options.h"

namespace ringsock::ethernet {

/// Few short packets are to be read at once; many, or long ones, as often as the limits say. Threads: one at a time,
/// but for is_due().
class AdaptiveModeration {
 public:
  /// Below this rate, and this mean length, nothing waits.
  static constexpr double kFewPerSecond = 450'000, kShortBytes = 1024;

  explicit AdaptiveModeration(const AdaptiveLimits& limits)
      : limits_(limits), due_(limits.interval == Nanos::zero() ? Nanos::max() : Nanos::zero()) {}

  /// Returns whether next() has something to do.
  [[nodiscard]] bool is_due(Nanos now) const { return now >= due_.load(std::memory_order_relaxed); }
  /// Returns the moderation for what has come since the last call; nothing at the first call, or before it is due.
  /// @param packets, bytes  received so far
  std::optional<Moderation> next(Nanos now, std::uint64_t packets, std::uint64_t bytes) {
    if (!is_due(now)) return std::nullopt;
    const bool is_first = due_.load(std::memory_order_relaxed) == Nanos::zero();
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const auto came = static_cast<double>(packets - packets_), length = static_cast<double>(bytes - bytes_);
    began_ = now;
    packets_ = packets;
    bytes_ = bytes;
    due_.store(now + limits_.interval, std::memory_order_relaxed);
    return is_first ? std::nullopt : std::optional(moderation_for(came / seconds, came == 0 ? 0 : length / came));
  }

 private:
  [[nodiscard]] Moderation moderation_for(double per_second, double mean_bytes) const {
    const bool is_light = per_second < kFewPerSecond && mean_bytes < kShortBytes;
    if (is_light || limits_.wake_ups_per_second == 0) return {};
    const double wake_ups = limits_.wake_ups_per_second;
    const auto packets = std::min(per_second / wake_ups, static_cast<double>(limits_.packets));
    const auto period = std::min(1e6 / wake_ups, static_cast<double>(limits_.period.count()));
    return {.packets = static_cast<std::uint16_t>(packets),
            .period = std::chrono::microseconds(static_cast<std::int64_t>(period))};
  }

  const AdaptiveLimits limits_;
  std::atomic<Nanos> due_;
  Nanos began_{};
  std::uint64_t packets_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace ringsock::ethernet
