// Congestion control: the interface, NewReno (RFC 5681, 6582) and CUBIC (RFC 9438).
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/clock.h"
#include "core/engine/tcp/settings.h"

namespace ringsock::engine::tcp {

struct CongestionWindow {
  std::uint32_t cwnd = 0;  ///< bytes
  std::uint32_t ssthresh = UINT32_MAX;
  [[nodiscard]] bool in_slow_start() const { return cwnd < ssthresh; }
};

/// An algorithm. Slow start and the loss window belong to the connection.
class CongestionControl {
 public:
  virtual ~CongestionControl() = default;
  /// Grows the window in congestion avoidance for `acked` bytes that were acknowledged.
  virtual void avoid(CongestionWindow& window, std::uint32_t acked, std::uint32_t mss, Nanos srtt, Nanos now) = 0;
  /// Returns the new ssthresh after a congestion event. Of the window and not of what is in flight (RFC 5681, 3.2,
  /// equation 4), as Linux: a window grows only as far as it is used (RFC 7661).
  virtual std::uint32_t reduced(const CongestionWindow& window, std::uint32_t mss) = 0;
  /// The event was none: the window was restored.
  virtual void undo() = 0;
};

std::unique_ptr<CongestionControl> make_congestion_control(Algorithm algorithm);

/// RFC 6928: 10 segments, at most 14,600 bytes or 2 segments.
constexpr std::uint32_t initial_window(std::uint32_t mss) {
  const std::uint32_t limit = 14'600 > 2 * mss ? 14'600 : 2 * mss;
  return 10 * mss < limit ? 10 * mss : limit;
}

}  // namespace ringsock::engine::tcp
