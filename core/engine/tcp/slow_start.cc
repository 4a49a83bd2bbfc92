#include "core/engine/tcp/slow_start.h"

#include <algorithm>

namespace ringsock::engine::tcp {

void HyStart::end_round(Seq nxt) {
  if (conservative_ && rounds_left_ > 0) --rounds_left_;
  running_ = true;
  round_end_ = nxt;
  last_least_ = least_;
  least_ = Nanos::max();
  samples_ = 0;
}

/// 4.2: from slow start into the conservative one, and back when the delay was a passing one.
void HyStart::judge() {
  if (samples_ < kSamples || least_ == Nanos::max()) return;
  if (conservative_) {
    if (least_ >= baseline_) return;
    conservative_ = false;
    rounds_left_ = kConservativeRounds;
    baseline_ = Nanos::max();
    return;
  }
  if (last_least_ == Nanos::max()) return;
  if (least_ < last_least_ + std::clamp(last_least_ / 8, kLeastThreshold, kMostThreshold)) return;
  conservative_ = true;
  baseline_ = least_;
}

std::uint32_t HyStart::grow(std::uint32_t acked, Nanos rtt, Seq una, Seq nxt) {
  if (!running_ || at_or_before(round_end_, una)) end_round(nxt);
  if (rtt >= Nanos(0)) {
    least_ = std::min(least_, rtt);
    ++samples_;
    judge();
  }
  return conservative_ ? acked / kConservativeDivisor : acked;
}

}  // namespace ringsock::engine::tcp
