// Round-trip times and the retransmission time-out (RFC 6298).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/clock.h"

namespace ringsock::engine::tcp {

class RttEstimator {
 public:
  static constexpr Nanos kLeastRto = std::chrono::milliseconds(200);  // as Linux; the RFC has 1 s
  static constexpr Nanos kMostRto = std::chrono::seconds(120);
  static constexpr Nanos kInitialRto = std::chrono::seconds(1);

  void sample(Nanos rtt) {
    rtt = std::max(rtt, Nanos(1));
    min_ = measured_ ? std::min(min_, rtt) : rtt;
    if (!measured_) {
      smoothed_ = rtt;
      variation_ = rtt / 2;
    } else {
      const Nanos error = smoothed_ > rtt ? smoothed_ - rtt : rtt - smoothed_;
      variation_ += (error - variation_) / 4;
      smoothed_ += (rtt - smoothed_) / 8;
    }
    measured_ = true;
    backoff_ = 0;
  }
  void back_off() { backoff_ = static_cast<std::uint8_t>(std::min(backoff_ + 1, 16)); }
  void end_backoff() { backoff_ = 0; }
  /// Without a measurement the time-out is 3 s from now on (RFC 6298, 5.7).
  void distrust() { initial_ = std::chrono::seconds(3); }
  /// Returns the time-out with the backoff so far. The variation counts with 200 ms at least, as on Linux.
  [[nodiscard]] Nanos rto() const { return std::min(base_rto() * (std::int64_t{1} << backoff_), kMostRto); }
  [[nodiscard]] Nanos base_rto() const {
    return measured_ ? std::min(smoothed_ + std::max(4 * variation_, kLeastRto), kMostRto) : initial_;
  }
  [[nodiscard]] bool measured() const { return measured_; }
  [[nodiscard]] Nanos smoothed() const { return smoothed_; }
  [[nodiscard]] Nanos variation() const { return variation_; }
  [[nodiscard]] Nanos least() const { return min_; }
  [[nodiscard]] std::uint8_t backoff() const { return backoff_; }

 private:
  Nanos smoothed_{};
  Nanos variation_{};
  Nanos min_{};
  Nanos initial_ = kInitialRto;
  bool measured_ = false;
  std::uint8_t backoff_ = 0;
};

}  // namespace ringsock::engine::tcp
