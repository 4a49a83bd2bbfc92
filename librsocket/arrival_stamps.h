// When the peer sent what has arrived.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "core/verbs/device.h"

namespace ringsock::rs {

/// Keeps the peer's order_stamp() (clock.h) of the first data, or end, that the latest poll brought. The peer is asked
/// for stamps by the first call of latest(). Threads: any; take() by one at a time.
class ArrivalStamps {
 public:
  /// Returns whether completions have stamps.
  [[nodiscard]] bool has() const { return has_.load(std::memory_order_relaxed); }
  /// Keeps the stamp of the first data, or end of the stream, among the completions. Returns whether there is one.
  bool take(std::span<const ibv_wc> completions);
  /// Returns the stamp, 0 if unknown.
  [[nodiscard]] std::uint32_t latest(verbs::Device& device, ibv_qp& qp);

 private:
  std::atomic<std::uint32_t> stamp_{0};
  std::atomic<bool> asked_{false};
  std::atomic<bool> has_{false};  ///< the device reports stamps
};

}  // namespace ringsock::rs
