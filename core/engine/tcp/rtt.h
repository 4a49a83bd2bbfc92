// Round-trip times and the retransmission time-out (RFC 6298).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/clock.h"
#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// Many samples of a round trip must not make the time-out forget the round trips before (RFC 7323, appendix G). So, as
/// on Linux, the part of the time-out that the variation makes grows at once, and falls once in a round trip, by a
/// quarter.
class RttEstimator {
 public:
  static constexpr Nanos kLeastRto = std::chrono::milliseconds(200);  // as Linux; the RFC has 1 s
  static constexpr Nanos kMostRto = std::chrono::seconds(120);
  static constexpr Nanos kInitialRto = std::chrono::seconds(1);

  /// Takes the time of a round trip. A round trip is over when what was next at its begin is acknowledged.
  /// @param una,next  SND.UNA and SND.NXT
  void sample(Nanos rtt, Seq una, Seq next) {
    rtt = std::max(rtt, Nanos(1));
    min_ = measured_ ? std::min(min_, rtt) : rtt;
    if (!measured_) {
      smoothed_ = rtt;
      variation_ = rtt / 2;
      margin_ = most_ = std::max(4 * variation_, kLeastRto);
      round_end_ = next;
    } else {
      vary(rtt);
      smoothed_ += (rtt - smoothed_) / 8;
      margin_ = std::max(margin_, most_);
      if (before(round_end_, una)) begin_round(next);
    }
    measured_ = true;
    backoff_ = 0;
  }
  /// Takes a time that is no sample for the time-out, but may be the shortest.
  void note_least(Nanos rtt) { min_ = std::min(min_, std::max(rtt, Nanos(1))); }
  void back_off() { backoff_ = static_cast<std::uint8_t>(std::min(backoff_ + 1, 16)); }
  void end_backoff() { backoff_ = 0; }
  /// Without a measurement the time-out is 3 s from now on (RFC 6298, 5.7).
  void distrust() { initial_ = std::chrono::seconds(3); }
  /// Returns the time-out with the backoff so far. The variation counts with 200 ms at least, as on Linux.
  [[nodiscard]] Nanos rto() const { return std::min(base_rto() * (std::int64_t{1} << backoff_), kMostRto); }
  [[nodiscard]] Nanos base_rto() const { return measured_ ? std::min(smoothed_ + margin_, kMostRto) : initial_; }
  [[nodiscard]] bool measured() const { return measured_; }
  [[nodiscard]] Nanos smoothed() const { return smoothed_; }
  [[nodiscard]] Nanos variation() const { return variation_; }
  [[nodiscard]] Nanos least() const { return min_; }
  [[nodiscard]] std::uint8_t backoff() const { return backoff_; }

 private:
  /// A time that is shorter than all that is usual is no reason to wait longer: it counts an eighth.
  void vary(Nanos rtt) {
    const Nanos error = smoothed_ > rtt ? smoothed_ - rtt : rtt - smoothed_;
    const Nanos change = (error - variation_) / 4;
    variation_ += rtt < smoothed_ && change > Nanos(0) ? change / 8 : change;
    most_ = std::max(most_, 4 * variation_);
  }
  void begin_round(Seq next) {
    if (most_ < margin_) margin_ -= (margin_ - most_) / 4;
    most_ = kLeastRto;
    round_end_ = next;
  }

  Nanos smoothed_{};
  Nanos variation_{};
  Nanos margin_{};  ///< of the time-out over the smoothed time
  Nanos most_{};    ///< four times the largest variation of this round trip, at least kLeastRto
  Seq round_end_ = 0;
  Nanos min_{};
  Nanos initial_ = kInitialRto;
  bool measured_ = false;
  std::uint8_t backoff_ = 0;
};

}  // namespace ringsock::engine::tcp
