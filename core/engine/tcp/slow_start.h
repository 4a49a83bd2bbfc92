// HyStart++ (RFC 9406): leaves the first slow start when the round trips grow, before packets are lost.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// Watches the rounds of the first slow start. Where the RFC limits the growth for one acknowledgement to eight
/// packets, this does not, like Linux: merged segments bring few acknowledgements.
class HyStart {
 public:
  /// Takes an acknowledgement of `acked` bytes. Returns by how much the window grows.
  /// @param rtt  A sample, or under 0.
  /// @param una, nxt  SND.UNA after it and SND.NXT: a round ends when what was sent at its start is acknowledged.
  std::uint32_t grow(std::uint32_t acked, Nanos rtt, Seq una, Seq nxt);
  /// Returns whether slow start is over: the window is the new ssthresh.
  [[nodiscard]] bool ended() const { return rounds_left_ == 0; }
  [[nodiscard]] bool is_conservative() const { return conservative_; }

 private:
  static constexpr Nanos kLeastThreshold = std::chrono::milliseconds(4);
  static constexpr Nanos kMostThreshold = std::chrono::milliseconds(16);
  static constexpr int kSamples = 8;
  static constexpr int kConservativeRounds = 5;
  static constexpr std::uint32_t kConservativeDivisor = 4;
  void end_round(Seq nxt);
  void judge();

  bool running_ = false;
  bool conservative_ = false;
  int rounds_left_ = kConservativeRounds;
  int samples_ = 0;
  Seq round_end_ = 0;
  Nanos last_least_ = Nanos::max();
  Nanos least_ = Nanos::max();
  Nanos baseline_ = Nanos::max();
};

}  // namespace ringsock::engine::tcp
