// Waiting on an epoll set.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <climits>
#include <mutex>
#include <utility>

#include "core/base/barrier.h"
#include "core/base/poll_until.h"
#include "core/poll/epoll_set.h"
#include "core/poll/process_waits.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "core/poll/thread_waits.h"
#include "core/poll/wait.h"
#include "core/runtime/listable.h"
#include "core/runtime/used_elsewhere.h"
#include "core/statistics/statistics.h"

namespace ringsock::runtime {

namespace {

/// A hot member costs 20-30 ns a round, making it cold and hot again about 3 us: after this many rounds being hot has
/// cost as much as the move.
constexpr std::uint64_t kIdleRounds = 128;
/// While endpoints have something to report, the kernel is asked once in this many rounds, or after this time (in units
/// of order_stamp(), about 25 us). It is asked every other round while its members have something to report, too.
constexpr unsigned kRoundsPerKernelLook = 8;
constexpr std::uint32_t kTimePerKernelLook = 2048;
/// The interval while spinning: about a microsecond.
constexpr std::size_t kLooksPerKernelLook = 16;
/// Up to this number of hot members costs less to ask in each round than to list.
constexpr std::size_t kFewHot = 16;
/// A listed member that is reported that often while few are hot is better asked than listed: its peer need not set
/// bits.
constexpr unsigned kReportsOfABusyOne = 64;
/// The interval of looks at hot members when doorbells cannot be registered.
constexpr Nanos kBlindSleep{1'000'000};

/// The age of events that precede all known ones, and of events with unknown time.
constexpr std::uint32_t kUnknownAge = ~0U;

/// In units of order_stamp(), about 0.4 us: within this time after its stamp was taken a peer's message is visible
/// here.
constexpr std::uint32_t kShownWithin = 32;

/// A scan of more members is not repeated for events that came meanwhile: finding their order would cost more than half
/// of the scan.
constexpr std::size_t kMostAskedAgain = 16;

/// Returns 0 for a stamp in the future: ticks of different CPUs differ a little, and peers may send any value.
std::uint32_t age_of(std::uint32_t stamp, std::uint32_t now) {
  const std::uint32_t age = now - stamp;
  return static_cast<std::int32_t>(age) < 0 ? 0 : age;
}

}  // namespace

/// Counts the calling thread as sleeping while it exists.
class EpollSet::CountedSleeper {
 public:
  explicit CountedSleeper(EpollSet& set) : set_(set), outer_(std::exchange(thread_waits.sleeping_in, &set)) {
    set_.sleepers_.fetch_add(1);
  }
  CountedSleeper(const CountedSleeper&) = delete;
  CountedSleeper& operator=(const CountedSleeper&) = delete;
  ~CountedSleeper() {
    set_.sleepers_.fetch_sub(1);
    thread_waits.sleeping_in = outer_;
  }

 private:
  EpollSet& set_;
  const EpollSet* outer_;  // not null in a signal handler that waits
};

void EpollSet::ring() {
  // A thread that is about to sleep notices by itself what its own last look has changed.
  const int ourselves = thread_waits.sleeping_in == this ? 1 : 0;
  if (sleepers_.load() > ourselves) ring_uncounted_sleepers();
}

/// Reports hot members until `events` is full.
int EpollSet::collect_locked(std::span<epoll_event> events, After after) {
  drain_changed();
  take_listed();
  wake_due_locked();
  const std::size_t unasked = hot_count_ - waiting_count_;
  std::size_t count = waiting_count_ > 0 ? report_waiting_locked(events) : 0;
  if (unasked == 1 && count < events.size()) {
    count += ask_only_one_locked(events[count], after);
  } else if (unasked > 1 && count < events.size()) {
    scan_locked(unasked, after);
    put_found_in_order_locked();
    count += report_found_locked(events.subspan(count));
  }
  thread_waits.tally.from_endpoints = static_cast<int>(count);
  return thread_waits.tally.from_endpoints;
}

/// Reports the members for which there was no room before.
std::size_t EpollSet::report_waiting_locked(std::span<epoll_event> events) {
  std::size_t count = 0;
  while (waiting_count_ > 0 && count < events.size()) {
    EpollMember& member = *hot_.front();
    member.is_waiting_ = false;
    --waiting_count_;
    member.ListNode<EpollSet>::unlink();
    hot_.push_back(member);
    if (member.reportable() != 0) report_locked(member, events[count++]);
  }
  return count;
}

/// Reports what the member's reportable() has found.
void EpollSet::report_locked(EpollMember& member, epoll_event& event) {
  event.events = member.found_;
  event.data = member.event_.data;
  member.reported();
  member.idle_until_ = round_ + kIdleRounds;
  if (!member.enabled_) return leave_lists(member);
  unlist_if_busy_alone(member);
}

void EpollSet::unlist_if_busy_alone(EpollMember& member) {
  if (hot_count_ > kFewHot) {
    member.reports_while_hot_ = 0;
  } else if (++member.reports_while_hot_ == kReportsOfABusyOne && member.is_listed()) {
    if (Listable* const endpoint = member.endpoint_->listable()) endpoint->unlist();
  }
}

/// Does the work of the three functions below for a single member, which needs no order.
std::size_t EpollSet::ask_only_one_locked(epoll_event& event, After after) {
  EpollMember& member = *hot_.front();
  if (member.reportable() == 0) {
    get_cold_if_possible(member, after);
    return 0;
  }
  report_locked(member, event);
  return 1;
}

/// Asks the first `members` hot members.
void EpollSet::scan_locked(std::size_t members, After after) {
  found_.clear();
  asked_.clear();
  scan_began_ = order_stamp();
  hot_.for_first(members, [this](EpollMember& member) {
    if (member.reportable() != 0) {
      found_.push_back({&member, 0, found_.size()});
    } else {
      asked_.push_back(&member);
    }
  });
  for (EpollMember* const member : asked_) get_cold_if_possible(*member, after);
}

void EpollSet::get_cold_if_possible(EpollMember& member, After after) {
  if ((after == After::get_cold && member.armed_) || (hot_count_ > kFewHot && member.is_listed()) ||
      // Its descriptors report events; registering them also reports present events.
      (member.endpoint_->asks_kernel() && arm_member(member))) {
    make_cold(member);
  }
}

/// Sorts by the times at which peers sent. Members without news since their last report come first. Members with
/// unknown times stay behind those that the scan found before them.
void EpollSet::put_found_in_order_locked() {
  if (scan_began_ == 0 || found_.empty() || (found_.size() == 1 && asked_.empty())) return;
  const std::uint32_t now = order_stamp();
  std::uint32_t previous = kUnknownAge;
  for (Found& found : found_) {
    const std::uint32_t stamp = found.member->has_news() ? found.member->endpoint_->arrival_stamp() : 0;
    found.age = stamp != 0 ? age_of(stamp, now) : found.member->has_news() ? previous : kUnknownAge;
    previous = found.age;
  }
  if (!asked_.empty() && asked_.size() <= kMostAskedAgain) find_overlooked_locked(now);
  const auto is_older = [](const Found& a, const Found& b) {
    return a.age != b.age ? a.age > b.age : a.place < b.place;
  };
  if (!std::is_sorted(found_.begin(), found_.end(), is_older)) std::sort(found_.begin(), found_.end(), is_older);
}

/// Asks again members that were not ready in the scan: some may have become ready before the youngest member that was
/// found. A thread that sees the youngest event also sees all earlier ones.
void EpollSet::find_overlooked_locked(std::uint32_t now) {
  std::uint32_t youngest = kUnknownAge;
  for (const Found& found : found_) youngest = std::min(youngest, found.age);
  if (youngest > now - scan_began_ + kShownWithin) return;
  for (EpollMember* const member : asked_) {
    if (member->reportable() == 0) continue;
    const std::uint32_t stamp = member->endpoint_->arrival_stamp();
    if (stamp == 0 || age_of(stamp, now) <= youngest) continue;
    make_hot(*member, round_);
    found_.push_back({member, age_of(stamp, now), found_.size()});
  }
}

/// Members without room stay in front of the hot members; those that are reported go behind all others, as in the
/// kernel.
std::size_t EpollSet::report_found_locked(std::span<epoll_event> events) {
  const std::size_t count = std::min(events.size(), found_.size());
  for (std::size_t i = found_.size(); i-- > count;) {
    EpollMember& member = *found_[i].member;
    member.ListNode<EpollSet>::unlink();
    hot_.push_front(member);
    member.is_waiting_ = true;
    ++waiting_count_;
  }
  for (std::size_t i = 0; i < count; ++i) {
    EpollMember& member = *found_[i].member;
    member.ListNode<EpollSet>::unlink();
    hot_.push_back(member);
    report_locked(member, events[i]);
  }
  return count;
}

/// Arms some members that have been idle for long, after a round in which others were busy.
void EpollSet::cool_down_locked() {
  ++round_;
  // A share of all members, so that ten thousand new ones are neither armed at once nor asked for long.
  std::size_t budget = std::max<std::size_t>(4, hot_count_ / 16);
  hot_.for_each([&](EpollMember& member) {
    if (budget == 0 || !is_to_get_cold(member)) return;
    --budget;
    member.armed_ = arm_or_list(member);
    if (member.armed_ && member.reportable() == 0 && member.armed_) {  // its last look may have changed its doorbells
      make_cold(member);
    } else {
      member.idle_until_ = round_ + kIdleRounds;
    }
  });
}

/// Returns whether the hot member was idle for long, or would cost less if it were listed.
bool EpollSet::is_to_get_cold(EpollMember& member) {
  return member.idle_until_ <= round_ || (hot_count_ > kFewHot && should_list(member));
}

void EpollSet::wake_due_locked() {
  if (due_.empty()) return;
  const Nanos now = monotonic_now();
  while (!due_.empty() && due_.begin()->first <= now) make_hot(*due_.begin()->second, round_);
}

/// Consumes the doorbells that rang. notify_watchers() makes the members of their endpoints hot, and wakes other
/// sleepers that may have been about to sleep on the same doorbell.
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
      if (parked_count_ > 0) forget_doorbells_of_parked(owner);
    }
  } while (count == static_cast<int>(rung.size()));
}

/// Reports the kernel's members. Errors: EINTR when nothing is ready and `mask` lets a pending signal through.
/// @param doorbells_rang  whether take_doorbells_locked() may find any
Result<int> EpollSet::look_at_kernel(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang) {
  int ready = 0;
  doorbells_rang = true;
  if (has_kernel_members_.load(std::memory_order_relaxed)) {
    const std::size_t most = std::min<std::size_t>(events.size(), INT_MAX / sizeof(epoll_event));
    const epoll_event before = events.front();
    ready = ::epoll_wait(kernel_.get(), events.data(), static_cast<int>(most), 0);
    int left = ready > 0 ? forget_wake_up(events.data(), ready) : 0;
    if (left == 0 && ready == 1 && most == 1) {
      // The doorbells took the place of another event.
      ready = ::epoll_wait(kernel_.get(), events.data(), 1, 0);
      left = ready > 0 ? forget_wake_up(events.data(), ready) : 0;
    }
    if (ready < 0) return Error::last("epoll_wait");
    if (left == 0) events.front() = before;  // programs use the entry again
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
    kernel_looked_at_.store(order_stamp(), std::memory_order_relaxed);
    kernel_had_some_.store(*from_kernel > 0, std::memory_order_relaxed);
  }
  if (member_count_.load(std::memory_order_relaxed) == 0) return from_kernel;
  int from_endpoints = 0;
  {
    const std::lock_guard guard(lock_);
    if (doorbells_rang) take_doorbells_locked();
    from_endpoints = collect_locked(events.subspan(static_cast<std::size_t>(*from_kernel)), After::stay_hot);
    if (from_endpoints > 0) cool_down_locked();
  }
  const int found = *from_kernel + from_endpoints;
  if (!must_follow_.load(std::memory_order_relaxed)) [[likely]]
    return found;
  follow_users();
  return found > 0 ? found : look(events, true, mask);
}

/// Moves the members to the kernel that other processes use. The kernel then tells of them. Members that cannot move
/// report an error.
void EpollSet::follow_users() {
  std::vector<Ref> used_elsewhere;
  {
    const std::lock_guard guard(lock_);
    must_follow_.store(false);
    for (auto& [key, member] : members_) {
      if (!std::exchange(member->is_used_elsewhere_, false)) continue;
      make_hot(*member, round_);
      used_elsewhere.push_back(Ref::share(*key.first));
    }
  }
  for (const Ref& endpoint : used_elsewhere) static_cast<void>(follow_user(*endpoint));
}

Result<int> EpollSet::spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals) {
  // Spinning only helps for endpoints.
  const std::size_t members = member_count_.load(std::memory_order_relaxed);
  if (members == 0) return 0;
  const auto rounds_per_kernel_look = static_cast<unsigned>(std::max<std::size_t>(
      1, kLooksPerKernelLook / std::max<std::size_t>(1, hot_count_.load(std::memory_order_relaxed))));
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
  hot_.for_each([this](EpollMember& member) { member.armed_ = member.is_listed() || arm_member(member); });
  let_peers_ring();
}

/// Returns whether all hot members are still armed, but for those that cannot be, and lets the next sleep arm them
/// anew.
bool EpollSet::forget_arming_locked() {
  bool all_armed = true;
  hot_.for_each([&all_armed](EpollMember& member) {
    all_armed = all_armed && (member.is_deaf_ || member.armed_);
    member.armed_ = false;
  });
  return all_armed;
}

/// Arms the hot members and sleeps on `waited`, the entries of kernel_ and doorbells_.
/// @return the number of events found before the sleep, 0 to go on; the hot members are then those that changed
/// meanwhile.
Result<int> EpollSet::arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                                    const sigset_t* mask) {
  const CountedSleeper sleeper(*this);
  {
    const std::lock_guard guard(lock_);
    if (is_closed()) return Error{EBADF, "epoll_wait"};
    arm_hot_locked();
    // The thread is counted as a sleeper and the members are armed: every event after this look wakes it.
    const int ready = collect_locked(events, After::get_cold);
    const bool all_armed = forget_arming_locked();
    // The members that got cold here may ring before the next event of those that are reported now.
    if (ready > 0) rounds_since_kernel_look_.store(kRoundsPerKernelLook, std::memory_order_relaxed);
    if (ready > 0 || !all_armed || changed_.load() != nullptr || must_follow_.load()) {
      need_no_rings();
      return ready;
    }
    if (!due_.empty()) deadline = std::min(deadline, due_.begin()->first);
    if (hot_count_ > 0) deadline = std::min(deadline, monotonic_now() + kBlindSleep);
  }
  const Result<int> woken = sleep_until(WaitFor::readiness, waited, deadline, mask);
  if (peers_ring_.load(std::memory_order_relaxed)) stay_awake();
  return woken ? Result<int>(0) : woken;
}

/// @return the number of events found, 0 to go on.
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
    // Usually the members that rang are ready, and the kernel has nothing to add.
    if (only_doorbells) found = look(events, false, nullptr);
    if (!found || *found > 0) return found;
  }
  return look(events, true, nullptr);
}

bool EpollSet::is_kernels_turn() {
  const unsigned rounds = rounds_since_kernel_look_.fetch_add(1, std::memory_order_relaxed);
  return rounds >= kRoundsPerKernelLook || (rounds > 0 && kernel_had_some_.load(std::memory_order_relaxed)) ||
         order_stamp() - kernel_looked_at_.load(std::memory_order_relaxed) > kTimePerKernelLook;
}

/// Asks hot members whether their peers have gone, which a thread that never sleeps would not notice.
void EpollSet::ask_hot_for_ends() {
  const std::lock_guard guard(lock_);
  if (hot_count_ <= kMostAskedAgain) hot_.for_each([](EpollMember& member) { member.endpoint_->look_for_end(); });
}

Result<int> EpollSet::wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask) {
  if (timeout == Nanos::zero() && hot_count_.load(std::memory_order_relaxed) > 0) ask_hot_for_ends();
  const bool kernel_first = is_kernels_turn();
  const sigset_t* const mask_while_waiting = timeout == Nanos::zero() ? nullptr : mask;
  Result<int> ready = look(events, kernel_first, nullptr);  // present events come before signals
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
  // Runs also when the thread is cancelled.
  struct Leaving {
    EpollSet& set;
    ~Leaving() { set.leave_hot_members(); }
  } const leaving{*this};
  if (timeout == Nanos::zero()) ::pthread_testcancel();
  // From here on this thread looks for those that sleep.
  if (peers_ring_.load(std::memory_order_relaxed)) stay_awake();
  return wait_awake(events, timeout, mask);
}

/// Peers need not ring while this thread looks at the maps.
void EpollSet::stay_awake() {
  const std::lock_guard guard(lock_);
  need_no_rings();
}

void EpollSet::let_peers_ring() {
  lists_.will_sleep();
  peers_ring_.store(lists_.has_maps(), std::memory_order_relaxed);
}

void EpollSet::need_no_rings() {
  lists_.is_awake();
  peers_ring_.store(false, std::memory_order_relaxed);
}

/// No thread looks at the hot members any more: a sleeping thread must be woken to arm them.
void EpollSet::leave_hot_members() {
  if (has_maps_.load(std::memory_order_relaxed)) leave_listed_members();
  if (hot_count_.load(std::memory_order_relaxed) == 0) return;
  ring();
  if (rings_after_adoption_.load() > 0 && rings_after_adoption_.fetch_sub(1) > 0) ring_uncounted_sleepers();
}

/// The same for members that are listed: peers must ring for the threads that sleep here, or on a set or a poll(2) that
/// watches this set. Those have armed this set once, and this thread has told the peers since that it is awake.
void EpollSet::leave_listed_members() {
  if (sleepers_.load() == 0 && !is_watched()) return;
  bool has_news = false;
  {
    const std::lock_guard guard(lock_);
    let_peers_ring();
    has_news = lists_.any();
  }
  if (!has_news) return;
  ring();
  note_activity();
  notify_watchers(EPOLLIN);
}

// -- the set as an endpoint

std::uint32_t EpollSet::ready() noexcept {
  bool is_ready = false;
  if (member_count_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard guard(lock_);
    take_doorbells_locked();
    drain_changed();
    take_listed();
    wake_due_locked();
    hot_.for_each([&is_ready](EpollMember& member) { is_ready = is_ready || member.reportable() != 0; });
    is_ready = is_ready || must_follow_.load();
  }
  // Called afterwards, because the doorbells of an adopted set are among the kernel's members.
  if (!is_ready && has_kernel_members_.load(std::memory_order_relaxed)) {
    pollfd entry{kernel_.get(), POLLIN, 0};
    is_ready = ::poll(&entry, 1, 0) > 0;
  }
  // Counts as an edge for a set that watches this one.
  if (is_ready && !was_ready_.load(std::memory_order_relaxed)) note_activity();
  was_ready_.store(is_ready, std::memory_order_relaxed);
  return is_ready ? std::uint32_t{EPOLLIN} : 0;
}

WaitFds EpollSet::arm() noexcept {
  const std::lock_guard guard(lock_);
  const AsymmetricBarrier::Batch one_barrier;
  hot_.for_each([this](EpollMember& member) {
    if (!member.is_listed()) arm_member(member);
  });
  let_peers_ring();
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
