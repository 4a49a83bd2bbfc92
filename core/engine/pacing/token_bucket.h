// Decides when a sender with a rate may send: a token bucket.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"

namespace ringsock::engine {

/// Tokens are bytes. They come at a constant rate, up to the size of a burst, and a datagram takes as many as it is
/// long. So in any time t at most burst + t * rate bytes leave. A datagram that is longer than a burst leaves when the
/// bucket is full, and the next one later by as much.
///
/// A sender that waits for tokens wakes up late. The tokens of that time count beyond a full bucket, up to half of the
/// waiting datagram or a given number: otherwise small bursts would cost it a part of its rate. Linux's fq does the
/// same. A sender that is later than the whole datagram, or that number, has not waited.
///
/// Time is any clock that does not go back, the same in all calls. Threads: one at a time.
class TokenBucket {
 public:
  static constexpr std::uint64_t kMostBytesPerSecond = 1'000'000'000'000;
  static constexpr std::uint64_t kMostBurstBytes = std::uint64_t{1} << 31;

  struct Limits {
    std::uint64_t bytes_per_second;
    std::uint64_t burst_bytes;
    std::uint64_t late_bytes = 0;  ///< what a sender that wakes up late may catch up
  };
  /// A full bucket. The first two numbers are at least 1, and all are limited to the constants above.
  TokenBucket(const Limits& limits, Nanos now);

  // A datagram that these two refuse counts as waiting.
  /// Takes the tokens of a datagram. Returns false when it has to wait.
  bool take(std::size_t bytes, Nanos now);
  /// Returns the time from which take() of a datagram of this length succeeds: `now`, or a later one.
  [[nodiscard]] Nanos ready_at(std::size_t bytes, Nanos now);
  /// Puts back tokens of a datagram that did not leave.
  void give_back(std::size_t bytes);

 private:
  // A byte is kUnit, so that a nanosecond brings rate_ of them: nothing is rounded.
  static constexpr std::int64_t kUnit = 1'000'000'000;
  static std::int64_t tokens_of(std::uint64_t bytes);
  void refill(Nanos now);
  [[nodiscard]] std::int64_t needed(std::size_t bytes) const;

  std::int64_t rate_;
  std::int64_t capacity_;
  std::int64_t late_;
  std::int64_t level_;
  std::int64_t awaited_ = 0;  ///< by the datagram that waits
  Nanos filled_;              ///< time of level_
};

}  // namespace ringsock::engine
