// The pace of a UDP socket's datagrams: SO_MAX_PACING_RATE.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/pacing/token_bucket.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/statistics/vma_statistics.h"
#include "libvmacompat/udp/pacing_rate.h"

namespace ringsock::vma {

/// A datagram takes its tokens before it leaves. Without enough of them the send fails with EAGAIN, so that blocking,
/// O_NONBLOCK, time limits and the pollers work as for a full queue: the socket cannot be written to until then. What
/// counts is a datagram's frame, without the checksum that the card adds, as for Linux's fq.
///
/// Who waits sleeps until deadline(). Whoever notices that the time has come tells all others, so none of them can miss
/// it. Locks: its own, a leaf. Threads: any.
class Pacer {
 public:
  /// A blocking send waits this long without sleeping.
  static constexpr Nanos kSpin = std::chrono::microseconds(100);

  Pacer(runtime::Endpoint& endpoint, runtime::VmaSocketStatistics& statistics)
      : endpoint_(endpoint), statistics_(statistics) {}

  /// From now on this rate holds, with a full bucket.
  void set(const PacingRate& rate);
  [[nodiscard]] PacingRate rate();

  /// Takes the tokens of a datagram whose frame is so long.
  /// @param may_wait  of the call; then a socket without O_NONBLOCK waits for kSpin at most
  /// Returns false when the datagram has to wait.
  bool take(std::size_t frame_bytes, bool may_wait);
  /// The datagram of the last take() has left.
  void count_sent() { statistics_.count(runtime::VmaSocketCount::tx_paced); }
  /// It has not.
  void give_back(std::size_t frame_bytes);

  /// Returns whether a datagram as long as the last one may leave.
  bool may_send();
  /// Returns when a sender that has to wait should look again, Nanos::max() when none waits.
  Nanos deadline();
  /// Held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  std::optional<Nanos> try_take(std::size_t frame_bytes);
  void note_wait(Nanos until);
  void end_wait();

  runtime::Endpoint& endpoint_;
  runtime::VmaSocketStatistics& statistics_;
  Mutex lock_;
  PacingRate rate_;
  std::optional<engine::TokenBucket> bucket_;  ///< while there is a limit
  std::size_t last_bytes_ = 0;                 ///< of the last frame
  std::atomic<bool> waits_{false};             ///< somebody was told to wait
  std::atomic<Nanos> until_{Nanos::zero()};
};

}  // namespace ringsock::vma
