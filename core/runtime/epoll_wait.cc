// Waiting on an epoll set.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <climits>
#include <mutex>
#include <utility>

#include "core/base/barrier.h"
#include "core/runtime/epoll_set.h"
#include "core/runtime/sleeper.h"
#include "core/runtime/spin_policy.h"
#include "core/runtime/statistics.h"
#include "core/runtime/wait.h"
#include "core/runtime/wait_tally.h"

namespace ringsock::runtime {

namespace {

/// A hot member costs 20-30 ns a round, making it cold and hot again about 3 us: after so many rounds being hot has
/// cost as much as the move.
constexpr std::uint64_t kIdleRounds = 128;
/// While endpoints have something to report, the kernel is asked once in so many rounds.
constexpr unsigned kRoundsPerKernelLook = 8;
/// While spinning: about once a microsecond.
constexpr std::size_t kLooksPerKernelLook = 16;
/// When doorbells cannot be registered, hot members are looked at so often.
constexpr Nanos kBlindSleep{1'000'000};

/// The set in which the calling thread counts as sleeping.
constinit thread_local const EpollSet* sleeping_in = nullptr;

}  // namespace

/// Counts the calling thread as sleeping, whichever way it leaves.
class EpollSet::CountedSleeper {
 public:
  explicit CountedSleeper(EpollSet& set) : set_(set), outer_(std::exchange(sleeping_in, &set)) {
    set_.sleepers_.fetch_add(1);
  }
  CountedSleeper(const CountedSleeper&) = delete;
  CountedSleeper& operator=(const CountedSleeper&) = delete;
  ~CountedSleeper() {
    set_.sleepers_.fetch_sub(1);
    sleeping_in = outer_;
  }

 private:
  EpollSet& set_;
  const EpollSet* outer_;  // a signal handler that waits
};

void EpollSet::ring() {
  // Who is about to sleep finds by itself what its own last look has changed.
  const int ourselves = sleeping_in == this ? 1 : 0;
  if (sleepers_.load() > ourselves) ring_uncounted_sleepers();
}

/// Reports hot members, those that waited longest first, until `events` is full.
int EpollSet::collect_locked(std::span<epoll_event> events, After after) {
  drain_changed();
  wake_due_locked();
  std::size_t count = 0;
  for (std::size_t left = hot_count_; left > 0 && count < events.size(); --left) {
    EpollMember& member = *hot_.front();
    member.ListNode<EpollSet>::unlink();
    hot_.push_back(member);
    const std::uint32_t found = member.reportable();
    if (found != 0) {
      events[count].events = found;
      events[count].data = member.event_.data;
      ++count;
      member.reported();
      member.idle_until_ = round_ + kIdleRounds;
      if (!member.enabled_) leave_lists(member);
    } else if ((after == After::get_cold && member.armed_) ||
               // Its descriptors tell; registering them tells also what is there already.
               (member.endpoint_->asks_kernel() && arm_member(member))) {
      make_cold(member);
    }
  }
  wait_tally.from_endpoints = static_cast<int>(count);
  return wait_tally.from_endpoints;
}

/// After a round in which others were busy: arms some of those that have done nothing for long.
void EpollSet::cool_down_locked() {
  ++round_;
  // A share of all, so that ten thousand new members are neither armed in one go nor asked for long.
  std::size_t budget = std::max<std::size_t>(4, hot_count_ / 16);
  hot_.for_each([&](EpollMember& member) {
    if (budget == 0 || member.idle_until_ > round_) return;
    --budget;
    if (arm_member(member) && member.reportable() == 0) {
      make_cold(member);
    } else {
      member.idle_until_ = round_ + kIdleRounds;
    }
  });
}

void EpollSet::wake_due_locked() {
  if (due_.empty()) return;
  const Nanos now = monotonic_now();
  while (!due_.empty() && due_.begin()->first <= now) make_hot(*due_.begin()->second, round_);
}

/// Takes the doorbells that rang. Their endpoints' watches, ours among them, become hot by notify_watchers(); other
/// sleepers may have been about to sleep on the same doorbell.
void EpollSet::take_doorbells_locked() {
  std::array<epoll_event, 64> rung;
  int count = 0;
  do {
    count = ::epoll_wait(doorbells_.get(), rung.data(), static_cast<int>(rung.size()), 0);
    for (int i = 0; i < count; ++i) {
      const auto known = known_doorbells_.find(rung[static_cast<std::size_t>(i)].data.fd);
      if (known == known_doorbells_.end()) continue;
      Endpoint& owner = *known->second.owner;
      owner.woken();
      owner.notify_watchers();
    }
  } while (count == static_cast<int>(rung.size()));
}

/// The kernel's members. Errors: EINTR when nothing is ready and `mask` lets a pending signal through.
/// @param doorbells_rang  whether take_doorbells_locked() may find any
Result<int> EpollSet::look_at_kernel(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang) {
  int ready = 0;
  doorbells_rang = true;
  if (has_kernel_members_.load(std::memory_order_relaxed)) {
    const std::size_t most = std::min<std::size_t>(events.size(), INT_MAX / sizeof(epoll_event));
    ready = ::epoll_wait(kernel_.get(), events.data(), static_cast<int>(most), 0);
    if (ready < 0) return Error::last("epoll_wait");
    const int left = forget_wake_up(events.data(), ready);
    doorbells_rang = !is_adopted_ || left != ready || static_cast<std::size_t>(ready) == most;
    ready = left;
  }
  if (ready == 0 && mask) {
    const Result<int> passed = poll_until({}, Nanos::zero(), mask);
    if (!passed) return passed.error();
  }
  return ready;
}

Result<int> EpollSet::look(std::span<epoll_event> events, bool kernel_too, const sigset_t* mask) {
  Result<int> from_kernel = 0;
  bool doorbells_rang = false;
  if (kernel_too) {
    rounds_since_kernel_look_.store(0, std::memory_order_relaxed);
    from_kernel = look_at_kernel(events, mask, doorbells_rang);
    if (!from_kernel) return from_kernel;
  }
  if (member_count_.load(std::memory_order_relaxed) == 0) return from_kernel;
  const std::lock_guard guard(lock_);
  if (doorbells_rang) take_doorbells_locked();
  const int from_endpoints = collect_locked(events.subspan(static_cast<std::size_t>(*from_kernel)), After::stay_hot);
  if (from_endpoints > 0) cool_down_locked();
  return *from_kernel + from_endpoints;
}

Result<int> EpollSet::spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals) {
  // Only endpoints are found faster by spinning.
  const std::size_t members = member_count_.load(std::memory_order_relaxed);
  if (members == 0) return 0;
  const auto rounds_per_kernel_look =
      static_cast<unsigned>(std::max<std::size_t>(1, kLooksPerKernelLook / std::max<std::size_t>(1, hot_count())));
  Spinner spinner(WaitFor::readiness, deadline, signals, rounds_per_kernel_look);
  unsigned round = 0;
  while (spinner.again()) {
    Result<int> ready = look(events, ++round % rounds_per_kernel_look == 0, nullptr);
    if (ready && *ready == 0) continue;
    spinner.paid_off();
    process_statistics.count_shared_spin_paid();
    return ready;
  }
  return 0;
}

void EpollSet::arm_hot_locked() {
  const AsymmetricBarrier::Batch one_barrier;
  hot_.for_each([this](EpollMember& member) { member.armed_ = arm_member(member); });
}

/// Arms the hot members and sleeps on `waited`, the kernel's descriptors of kernel_ and doorbells_.
/// @return events found before that, 0 to go on; afterwards the hot members are those that changed meanwhile.
Result<int> EpollSet::arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                                    const sigset_t* mask) {
  const CountedSleeper sleeper(*this);
  {
    const std::lock_guard guard(lock_);
    if (is_closed()) return Error{EBADF, "epoll_wait"};
    arm_hot_locked();
    // Counted and armed: whatever comes after this look wakes us.
    const int ready = collect_locked(events, After::get_cold);
    hot_.for_each([](EpollMember& member) { member.armed_ = false; });
    if (ready > 0 || changed_.load() != nullptr) return ready;
    if (!due_.empty()) deadline = std::min(deadline, due_.begin()->first);
    if (hot_count_ > 0) deadline = std::min(deadline, monotonic_now() + kBlindSleep);
  }
  const Result<int> woken = sleep_until(WaitFor::readiness, waited, deadline, mask);
  return woken ? Result<int>(0) : woken;
}

/// @return events found, 0 to go on.
Result<int> EpollSet::sleep(std::span<epoll_event> events, Nanos deadline, const sigset_t* mask) {
  std::array<pollfd, 2> waited{{{kernel_.get(), POLLIN, 0}, {doorbells_.get(), POLLIN, 0}}};
  Result<int> found = arm_and_sleep(waited, events, deadline, mask);
  if (!found || *found > 0) return found;
  const bool doorbells_rang = waited[1].revents != 0;
  const bool only_doorbells = waited[0].revents == 0 || is_adopted_;
  if (doorbells_rang) {
    {
      const std::lock_guard guard(lock_);
      take_doorbells_locked();
    }
    // Mostly what rang is there, and the kernel has nothing to add.
    if (only_doorbells) found = look(events, false, nullptr);
    if (!found || *found > 0) return found;
  }
  return look(events, true, nullptr);
}

Result<int> EpollSet::wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask) {
  const bool kernel_first = rounds_since_kernel_look_.fetch_add(1, std::memory_order_relaxed) >= kRoundsPerKernelLook;
  const sigset_t* const mask_while_waiting = timeout == Nanos::zero() ? nullptr : mask;
  Result<int> ready = kernel_first ? Result<int>(0) : look(events, false, nullptr);
  if (ready && *ready == 0) ready = look(events, true, mask_while_waiting);
  if (!ready || *ready > 0 || timeout == Nanos::zero()) return ready;
  const Nanos deadline = deadline_after(timeout);
  HeldSignals signals(mask);
  for (;;) {
    ready = spin(events, deadline, signals);
    if (!ready || *ready > 0) return ready;
    ready = sleep(events, deadline, signals.mask());
    if (!ready || *ready > 0) return ready;
    if (deadline != Nanos::max() && monotonic_now() >= deadline) return 0;
  }
}

Result<int> EpollSet::wait(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask) {
  if (events.empty() || events.size() > INT_MAX / sizeof(epoll_event)) return Error{EINVAL, "epoll_wait"};
  // Also when the thread is cancelled.
  struct Leaving {
    EpollSet& set;
    ~Leaving() { set.leave_hot_members(); }
  } const leaving{*this};
  if (timeout == Nanos::zero()) ::pthread_testcancel();
  return wait_awake(events, timeout, mask);
}

/// Nobody looks at the hot members any more: those who sleep must arm them.
void EpollSet::leave_hot_members() {
  if (hot_count() == 0) return;
  ring();
  if (rings_after_adoption_.load() > 0 && rings_after_adoption_.fetch_sub(1) > 0) ring_uncounted_sleepers();
}

// -- the set as an endpoint
// ---------------------------------------------------------------------------------------------------

std::uint32_t EpollSet::ready() noexcept {
  bool is_ready = false;
  if (member_count_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard guard(lock_);
    take_doorbells_locked();
    drain_changed();
    wake_due_locked();
    hot_.for_each([&is_ready](EpollMember& member) { is_ready = is_ready || member.reportable() != 0; });
  }
  // Afterwards: the doorbells of an adopted set are among the kernel's members.
  if (!is_ready && has_kernel_members_.load(std::memory_order_relaxed)) {
    pollfd entry{kernel_.get(), POLLIN, 0};
    is_ready = ::poll(&entry, 1, 0) > 0;
  }
  // An edge for a set that watches this one.
  if (is_ready && !was_ready_.load(std::memory_order_relaxed)) note_activity();
  was_ready_.store(is_ready, std::memory_order_relaxed);
  return is_ready ? std::uint32_t{EPOLLIN} : 0;
}

WaitFds EpollSet::arm() noexcept {
  const std::lock_guard guard(lock_);
  const AsymmetricBarrier::Batch one_barrier;
  hot_.for_each([this](EpollMember& member) { arm_member(member); });
  return {{kernel_.get(), doorbells_.get()}};
}

void EpollSet::woken() noexcept {
  note_activity();
  const std::lock_guard guard(lock_);
  take_doorbells_locked();
}

Nanos EpollSet::deadline() noexcept {
  const std::lock_guard guard(lock_);
  Nanos earliest = due_.empty() ? Nanos::max() : due_.begin()->first;
  bool is_deaf = false;
  hot_.for_each([&](EpollMember& member) {
    earliest = std::min(earliest, member.endpoint_->deadline());
    is_deaf = is_deaf || member.is_deaf_;
  });
  return is_deaf ? std::min(earliest, monotonic_now() + kBlindSleep) : earliest;
}

}  // namespace ringsock::runtime
