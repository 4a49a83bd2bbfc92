#include "core/engine/pacing/token_bucket.h"

#include <algorithm>

namespace ringsock::engine {

TokenBucket::TokenBucket(const Limits& limits, Nanos now)
    : rate_(static_cast<std::int64_t>(std::clamp<std::uint64_t>(limits.bytes_per_second, 1, kMostBytesPerSecond))),
      capacity_(tokens_of(std::max<std::uint64_t>(limits.burst_bytes, 1))),
      late_(tokens_of(limits.late_bytes)),
      level_(capacity_),
      filled_(now) {}

std::int64_t TokenBucket::tokens_of(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min(bytes, kMostBurstBytes)) * kUnit;
}

void TokenBucket::refill(Nanos now) {
  if (now <= filled_) return;
  const std::int64_t elapsed = (now - filled_).count();
  filled_ = now;
  const bool waits = awaited_ != 0;
  const std::int64_t latest = capacity_ + (waits ? std::max(awaited_, late_) : 0);
  const std::int64_t most = capacity_ + (waits ? std::max(awaited_ / 2, late_) : 0);
  if (elapsed > (latest - level_) / rate_) {
    level_ = capacity_;
    awaited_ = 0;
  } else {
    level_ = std::min(level_ + elapsed * rate_, most);
  }
}

/// Returns how full the bucket has to be for a datagram.
std::int64_t TokenBucket::needed(std::size_t bytes) const { return std::min(capacity_, tokens_of(bytes)); }

bool TokenBucket::take(std::size_t bytes, Nanos now) {
  refill(now);
  const std::int64_t least = needed(bytes);
  if (level_ < least) {
    awaited_ = least;
    return false;
  }
  level_ -= tokens_of(bytes);
  if (level_ <= capacity_) awaited_ = 0;  // otherwise it is still catching up
  return true;
}

void TokenBucket::give_back(std::size_t bytes) {
  level_ += tokens_of(bytes);
  level_ = std::min(level_, capacity_);
}

Nanos TokenBucket::ready_at(std::size_t bytes, Nanos now) {
  refill(now);
  const std::int64_t least = needed(bytes);
  if (level_ >= least) return now;
  awaited_ = least;
  return filled_ + Nanos((least - level_ + rate_ - 1) / rate_);
}

}  // namespace ringsock::engine
