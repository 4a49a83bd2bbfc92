// Proportional rate reduction (RFC 9937): how much leaves during fast recovery.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ringsock::engine::tcp {

/// Spreads the reduction of a window over a round trip. All numbers are bytes.
class RateReduction {
 public:
  /// Recovery begins with `flight` bytes that were not known to be delivered.
  void begin(std::uint32_t flight) {
    flight_ = std::max(flight, 1u);
    delivered_ = sent_ = 0;
  }
  void sent(std::uint32_t bytes) { sent_ += bytes; }
  /// Returns the congestion window after an acknowledgement.
  /// @param safe  It has advanced SND.UNA and shown no further loss.
  [[nodiscard]] std::uint32_t window(std::uint32_t delivered, std::uint32_t in_flight, std::uint32_t ssthresh,
                                     std::uint32_t mss, bool safe) {
    delivered_ += delivered;
    std::uint64_t count = 0;
    if (in_flight > ssthresh) {
      // Rounded up to a whole packet: the rest of one cannot leave.
      const std::uint64_t share = (delivered_ * ssthresh + flight_ * mss - 1) / (flight_ * mss) * mss;
      count = share > sent_ ? share - sent_ : 0;
    } else {
      count = std::max<std::uint64_t>(delivered_ > sent_ ? delivered_ - sent_ : 0, delivered) + (safe ? mss : 0);
      count = std::min<std::uint64_t>(count, ssthresh - in_flight);
    }
    if (sent_ == 0) count = std::max<std::uint64_t>(count, mss);
    return std::max(mss, in_flight + static_cast<std::uint32_t>(std::min<std::uint64_t>(count, 1u << 30)));
  }

 private:
  std::uint64_t flight_ = 1;
  std::uint64_t delivered_ = 0;
  std::uint64_t sent_ = 0;
};

}  // namespace ringsock::engine::tcp
