#include "libvmacompat/udp/pacer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <mutex>

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;
using Level = runtime::VmaSocketLevel;

/// The longest frame without VLAN tag that an Ethernet of the usual MTU has.
constexpr std::size_t kUsualFrame = 1514;

/// Without a configured burst one has what leaves in four milliseconds, and two frames at least. Threads that have to
/// wait on a busy machine wake up later than that, and may catch up what leaves in a sixteenth of a second.
engine::TokenBucket::Limits limits_of(const PacingRate& rate) {
  constexpr std::uint64_t kBurstsPerSecond = 250, kLatePerSecond = 16;
  if (rate.burst_bytes != 0) return {.bytes_per_second = rate.bytes_per_second, .burst_bytes = rate.burst_bytes};
  return {.bytes_per_second = rate.bytes_per_second,
          .burst_bytes = std::max<std::uint64_t>(rate.bytes_per_second / kBurstsPerSecond, 2 * kUsualFrame),
          .late_bytes = rate.bytes_per_second / kLatePerSecond};
}

}  // namespace

void Pacer::set(const PacingRate& rate) {
  {
    const std::lock_guard guard(lock_);
    rate_ = rate;
    bucket_.reset();
    last_bytes_ = rate.typical_bytes != 0 ? rate.typical_bytes : kUsualFrame;
    if (rate.is_limit()) bucket_.emplace(limits_of(rate), monotonic_now());
  }
  constexpr std::uint64_t kBytesPerKbit = 125;
  statistics_.set(Level::tx_rate_kbps, rate.is_limit() ? rate.bytes_per_second / kBytesPerKbit : 0);
  end_wait();
}

PacingRate Pacer::rate() {
  const std::lock_guard guard(lock_);
  return rate_;
}

/// Returns the time until which the datagram has to wait, or nothing when it may leave.
std::optional<Nanos> Pacer::try_take(std::size_t frame_bytes) {
  const Nanos now = monotonic_now();
  const std::lock_guard guard(lock_);
  last_bytes_ = frame_bytes;
  if (!bucket_ || bucket_->take(frame_bytes, now)) return std::nullopt;
  return bucket_->ready_at(frame_bytes, now);
}

bool Pacer::take(std::size_t frame_bytes, bool may_wait) {
  const bool may_spin = may_wait && !endpoint_.is_nonblocking();
  auto until = try_take(frame_bytes);
  while (until && may_spin && *until - monotonic_now() <= kSpin) {
    while (monotonic_now() < *until) cpu_relax();
    until = try_take(frame_bytes);
  }
  if (until) {
    note_wait(*until);
  } else if (waits_.load(std::memory_order_relaxed)) {
    end_wait();
  }
  return !until;
}

void Pacer::give_back(std::size_t frame_bytes) {
  const std::lock_guard guard(lock_);
  if (bucket_) bucket_->give_back(frame_bytes);
}

bool Pacer::may_send() {
  const Nanos now = monotonic_now();
  Nanos ready = now;
  {
    const std::lock_guard guard(lock_);
    if (bucket_) ready = bucket_->ready_at(last_bytes_, now);
  }
  if (ready > now) {
    note_wait(ready);
  } else if (waits_.load()) {
    end_wait();
  }
  return ready <= now;
}

void Pacer::note_wait(Nanos until) {
  until_.store(until);
  if (!waits_.exchange(true)) statistics_.count(Count::tx_paced_waits);
}

/// Others may be about to sleep until a deadline that they will not see any more.
void Pacer::end_wait() {
  if (!waits_.exchange(false)) return;
  endpoint_.note_activity(EPOLLOUT);
  endpoint_.notify_watchers(EPOLLOUT);
}

Nanos Pacer::deadline() {
  if (!waits_.load()) return Nanos::max();
  const Nanos until = until_.load();
  const Nanos now = monotonic_now();
  if (until > now) return until;
  end_wait();
  return now;
}

}  // namespace ringsock::vma
