#include "core/ethernet/bursts.h"

#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <new>

#include "core/base/at_fork.h"
#include "core/ethernet/ring.h"
#include "core/runtime/service_thread.h"

namespace ringsock::ethernet {

namespace {

/// The largest average time between sends of a burst: so many come while the first one waits that a train is worth it.
constexpr Nanos kMostBetween = Bursts::kLongestWait / Bursts::kWorthWaiting;
/// How much too early a train may leave, to save a wake-up.
constexpr Nanos kEarly = std::chrono::microseconds(10);

/// Has the service thread's timers fire when they are due, and not up to 50 us later.
void be_punctual() {
  static thread_local const int asked = ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  static_cast<void>(asked);
}

[[gnu::constructor]] void start() {
  bursts();
  at_fork(ForkStep::bursts, nullptr, nullptr, [] { bursts().after_fork_in_child(); });
}

[[gnu::destructor]] void send_at_exit() {
  bursts().stop();
  bursts().send_last();
}

}  // namespace

constinit thread_local ThreadRings thread_rings;

void Bursts::enter(Ring& ring) {
  const std::lock_guard guard(lock_);
  rings_.push_back(&ring);
}

void Bursts::leave(Ring& ring) {
  const std::lock_guard guard(lock_);
  std::erase(rings_, &ring);
}

/// The rest of continue_run(), from the second send on.
bool Bursts::is_burst(const Ring& ring) {
  if (thread_rings.run.ring != &ring) {
    if (thread_rings.run.sends > kFirstSends) send_all();
    thread_rings.run = {.sends = 2, .began = {}, .ring = &ring};
  }
  if (thread_rings.run.sends > kFirstSends) {
    thread_rings.run.sends = kFirstSends + 1;
    return !stopped_.load(std::memory_order_relaxed);
  }
  if (thread_rings.run.sends == 2) thread_rings.run.began = monotonic_now();
  if (thread_rings.run.sends == kFirstSends && monotonic_now() - thread_rings.run.began > kFirstSends * kMostBetween)
    end_run();
  return false;
}

void Bursts::send_before_look() {
  if (any_waits() && send_trains() < kWorthWaiting) end_run();
}

std::size_t Bursts::send_trains() {
  std::size_t sent = 0;
  const std::lock_guard guard(lock_);
  for (Ring* const ring : rings_) sent += ring->send_train();
  return sent;
}

void Bursts::send_last() noexcept {
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 20'000};
  // The owner of a lock may be the thread that this one has interrupted, or a thread that waits for this CPU.
  const Nanos limit = monotonic_now() + std::chrono::milliseconds(50);
  while (any_waits() && !try_send_trains() && monotonic_now() < limit) ::nanosleep(&kPause, nullptr);
}

bool Bursts::try_send_trains() noexcept {
  const std::unique_lock guard(lock_, std::try_to_lock);
  return guard && std::ranges::all_of(rings_, [](Ring* ring) { return ring->try_send_train(); });
}

// -- trains that only the service thread sends -----------------------------------------------------

bool Bursts::train_begins() {
  begun_.fetch_add(1, std::memory_order_seq_cst);
  // Either this function sees that no look is due, or look() sees the train before it ends.
  if (is_watched_.load(std::memory_order_seq_cst) || is_watched_.exchange(true, std::memory_order_seq_cst)) return true;
  return look_later(monotonic_now() + kLongestWait);
}

bool Bursts::look_later(Nanos when) {
  if (runtime::service_thread().schedule(when, [this] { look(); })) return true;
  stop();
  is_watched_.store(false, std::memory_order_relaxed);
  return false;
}

/// Runs on the service thread, again and again as long as trains begin.
void Bursts::look() {
  be_punctual();
  const Nanos now = monotonic_now();
  Nanos next = now + kLongestWait;
  {
    const std::lock_guard guard(lock_);
    for (Ring* const ring : rings_) next = std::min(next, ring->send_train_before(now + kEarly - kLongestWait));
  }
  const std::uint64_t begun = begun_.load(std::memory_order_relaxed);
  if (any_waits() || std::exchange(seen_, begun) != begun) {
    if (!look_later(next)) send_trains();
    return;
  }
  is_watched_.store(false, std::memory_order_seq_cst);
  if (begun_.load(std::memory_order_seq_cst) != begun && !is_watched_.exchange(true, std::memory_order_seq_cst) &&
      !look_later(next))
    send_trains();
}

/// The rings and their trains are the parent's.
void Bursts::after_fork_in_child() {
  new (&lock_) Mutex;
  new (&rings_) std::vector<Ring*>;  // another thread may have been changing it at the fork
  left_.store(begun_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  is_watched_.store(false, std::memory_order_relaxed);
  thread_rings.run = {};
}

}  // namespace ringsock::ethernet
