// Trains: a ring keeps the datagrams of a burst for a moment, and sends them together (bursts.h).
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <utility>

#include "core/ethernet/bursts.h"
#include "core/ethernet/interface.h"
#include "core/ethernet/ring.h"

namespace ringsock::ethernet {

namespace {

/// How often a send is tried when the device's queue is full. Together this is the time that the largest train takes on
/// a slow line.
constexpr int kAttempts = 500;
constexpr Nanos kWithoutTrains = std::chrono::seconds(1);
void wait_for_room() {
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 100'000};
  ::nanosleep(&kPause, nullptr);
}

}  // namespace

int Ring::send_in_burst(std::span<std::byte> headers, std::span<const iovec> payload, std::size_t payload_bytes) {
  const std::lock_guard guard(send_lock_);
  DatagramPieces pieces(headers, payload);
  if (!train_.takes(headers, payload_bytes)) {
    const std::size_t before = send_train_locked();
    // A datagram that others do not follow soon leaves at once, as outside bursts.
    const bool is_alone = (before != 0 && before < Bursts::kWorthWaiting) || std::exchange(train_was_late_, false);
    if (is_alone) Bursts::end_run();
    if (is_alone || !begin_train(headers, payload_bytes)) {
      ibv_send_wr request = frame_request(pieces.all(), IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
      return post_locked(request);
    }
  }
  train_.add(pieces.payload());
  if (train_.is_full()) send_train_locked();
  return 0;
}

/// Limits trains to the number of datagrams that come in a quarter to a half of kLongestWait. Otherwise the service
/// thread would have to send every train of a slower sender.
void Ring::limit_train(Nanos now) {
  const Nanos took = now - std::exchange(last_train_began_, now);
  const std::size_t limit = train_.limit();
  if (took < Bursts::kLongestWait / 4) train_.set_limit(std::min(2 * limit, Train::kMostDatagrams));
  if (took > Bursts::kLongestWait / 2) train_.set_limit(std::max(limit / 2, Bursts::kWorthWaiting));
}

/// Returns false when the datagram must leave at once.
bool Ring::begin_train(std::span<const std::byte> header, std::size_t payload_bytes) {
  if (!makes_trains_ || !train_.begin(header, payload_bytes)) return false;
  const Nanos now = monotonic_now();
  if (now < no_trains_until_) return false;
  limit_train(now);
  train_began_.store(now, std::memory_order_relaxed);
  if (bursts().train_begins()) return true;
  train_began_.store(Nanos::zero(), std::memory_order_relaxed);
  bursts().train_leaves();
  return false;
}

std::size_t Ring::send_train_locked() {
  const std::size_t count = train_.count();
  if (count == 0) return 0;
  int error = ENOMEM;
  for (int i = 0; error == ENOMEM && i < kAttempts; ++i) {
    if (i > 0) {
      wait_for_room();
      no_trains_until_ = monotonic_now() + kWithoutTrains;
    }
    Train::Request request;
    train_.describe(request);
    error = post_locked(request.wr);
  }
  if (error != 0) {
    lost_ += count;
  } else if (count > 1) {
    counters_->count(RingCount::tx_trains);
    counters_->count(RingCount::tx_joined, count);
  }
  train_.clear();
  train_began_.store(Nanos::zero(), std::memory_order_relaxed);
  bursts().train_leaves();
  return count;
}

std::size_t Ring::send_train() {
  if (!has_train()) return 0;
  const std::lock_guard guard(send_lock_);
  return send_train_locked();
}

bool Ring::try_send_train() noexcept {
  if (!has_train()) return true;
  const std::unique_lock guard(send_lock_, std::try_to_lock);
  if (guard) send_train_locked();
  return guard.owns_lock();
}

Nanos Ring::send_train_before(Nanos limit) {
  const Nanos began = train_began_.load(std::memory_order_relaxed);
  if (began == Nanos::zero()) return Nanos::max();
  if (began > limit) return began + Bursts::kLongestWait;
  const std::lock_guard guard(send_lock_);
  if (train_began_.load(std::memory_order_relaxed) == began) train_was_late_ = send_train_locked() != 0;
  return Nanos::max();
}

}  // namespace ringsock::ethernet
