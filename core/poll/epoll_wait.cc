// Waiting on an epoll set.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <climits>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/handlers_wait.h"
#include "core/base/libc_calls.h"
#include "core/base/rare_calls.h"
#include "core/poll/epoll_set.h"
#include "core/poll/process_waits.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "core/poll/thread_waits.h"
#include "core/poll/wait.h"
#include "core/runtime/library_call.h"
#include "core/runtime/used_elsewhere.h"
#include "core/statistics/statistics.h"

namespace ringsock::runtime {

namespace {

/// The interval while spinning: about a microsecond.
constexpr std::size_t kLooksPerKernelLook = 16;
/// The interval of looks at hot members when doorbells cannot be registered.
constexpr Nanos kBlindSleep{1'000'000};

/// Asking more members for their peers' ends in each call would cost more than the call.
constexpr std::size_t kMostAskedForEnds = 16;

/// Waits without ppoll(2), and by epoll_wait(2) where a filter permits only that. The wake-ups of an adopted set are
/// not counted.
Result<int> wait_under_filter(int epoll_fd, std::span<epoll_event> events, Nanos deadline, const sigset_t* mask) {
  const auto most = static_cast<int>(std::min<std::size_t>(events.size(), INT_MAX));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline == Nanos::max() ? Nanos::zero() : std::max(Nanos::zero(), deadline - monotonic_now()));
  const int timeout = deadline == Nanos::max() ? -1 : static_cast<int>(std::min<long>(left.count(), INT_MAX));
  int ready = 0;
  if (is_known_forbidden(RareCall::epoll_pwait)) {
    const OutsideLibrary handlers_run;
    ready = libc_calls.epoll_wait(epoll_fd, events.data(), most, timeout);
  } else {
    const BeforeSleep sleep(mask);
    if (sleep.is_interrupted()) return Error{EINTR, "epoll_wait"};
    ready = libc_calls.epoll_pwait(epoll_fd, events.data(), most, timeout, sleep.mask());
  }
  if (ready < 0) return Error::last("epoll_wait");
  return KernelMembers::forget_wake_up(events.data(), ready);
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
  if (sleepers_.load() > ourselves) members_.doorbells.ring_bell();
}

/// Looks at the hot members, after the kernel's members and the doorbells, which make members hot. A spin leaves
/// clients of listeners that others share to a thread that sleeps (TurnDoorbells).
Result<int> EpollSet::look(std::span<epoll_event> events, Beside beside, const sigset_t* mask) {
  Result<int> from_kernel = 0;
  bool doorbells_rang = false;
  if (beside != Beside::nothing) {
    from_kernel = kernel_.look(events, mask, doorbells_rang);
    if (!from_kernel) return from_kernel;
  }
  if (members_.count() == 0) return from_kernel;
  int from_endpoints = 0;
  {
    const std::lock_guard guard(lock_);
    if (doorbells_rang) members_.take_doorbells();
    if (beside == Beside::turns) members_.take_turns();
    const auto room = events.subspan(static_cast<std::size_t>(*from_kernel));
    from_endpoints = static_cast<int>(collector_.collect(members_, room, After::stay_hot));
    if (from_endpoints > 0) members_.cool_down(collector_.seen());
  }
  const int found = *from_kernel + from_endpoints;
  if (!must_follow_.load(std::memory_order_relaxed)) [[likely]]
    return found;
  follow_users();
  return found > 0 ? found : look(events, Beside::doorbells, mask);
}

/// Moves the members to the kernel that other processes use. The kernel then tells of them. Members that cannot move
/// report an error.
void EpollSet::follow_users() {
  std::vector<Ref> used_elsewhere;
  {
    const std::lock_guard guard(lock_);
    must_follow_.store(false);
    for (auto& [key, member] : members_.table) {
      if (!std::exchange(member->is_used_elsewhere, false)) continue;
      members_.hot.heat(*member, 0);
      used_elsewhere.push_back(Ref::share(*key.first));
    }
  }
  for (const Ref& endpoint : used_elsewhere) static_cast<void>(follow_user(*endpoint));
}

Result<int> EpollSet::spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals) {
  // Spinning only helps for endpoints, and nobody spins for what is taken in turns.
  if (members_.count() == members_.turns.count()) return 0;
  const auto rounds_per_kernel_look = static_cast<unsigned>(
      std::max<std::size_t>(1, kLooksPerKernelLook / std::max<std::size_t>(1, members_.hot.count())));
  Spinner spinner(WaitFor::readiness, deadline, signals, rounds_per_kernel_look);
  const unsigned rounds = process_waits().kernel_looks.rounds(rounds_per_kernel_look);
  unsigned round = 0;
  while (spinner.again()) {
    Result<int> ready = look(events, ++round % rounds == 0 ? Beside::doorbells : Beside::nothing, nullptr);
    if (ready && *ready == 0 && has_due_calls()) [[unlikely]]
      return kForDueCalls;
    if (ready && *ready == 0) continue;
    spinner.paid_off();
    process_statistics.count_shared_spin_paid();
    return ready;
  }
  return 0;
}

/// Sleeps, in turn with others where the set has such members. Those that have woken the thread become hot.
Result<int> EpollSet::sleep_in_turn(std::span<pollfd> waited, Nanos deadline, const sigset_t* mask) {
  const int turns = members_.turns.file();
  if (turns < 0) return sleep_until(WaitFor::readiness, waited.first(waited.size() - 1), deadline, mask);
  if (!is_permitted(RareCall::epoll_pwait)) {
    waited.back().fd = turns;
    return sleep_until(WaitFor::readiness, waited, deadline, mask);
  }
  TurnDoorbells::Events rung;
  const Result<int> woken = sleep_on_epoll_file(turns, rung, deadline, mask);
  if (!woken || *woken == 0) return woken;
  const auto events = std::span(rung).first(static_cast<std::size_t>(*woken));
  for (pollfd& entry : waited.first(waited.size() - 1)) {
    const auto tells = [&entry](const epoll_event& event) { return event.data.fd == entry.fd; };
    if (std::any_of(events.begin(), events.end(), tells)) entry.revents = POLLIN;
  }
  const std::lock_guard guard(lock_);
  if (members_.heat_in_turn(events)) waited.back().revents = POLLIN;
  return woken;
}

/// Arms the hot members and sleeps on `waited`, the entries of the kernel's epoll file and of the doorbells, and the
/// one for members that are taken in turns.
/// @return the number of events found before the sleep, 0 to go on; the hot members are then those that changed
/// meanwhile.
Result<int> EpollSet::arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                                    const sigset_t* mask) {
  const CountedSleeper sleeper(*this);
  {
    const std::lock_guard guard(lock_);
    if (is_closed()) {
      ring();  // where members are taken in turns a ring wakes one thread
      return Error{EBADF, "epoll_wait"};
    }
    members_.arm_hot();
    // The thread is counted as a sleeper and the members are armed: every event after this look wakes it.
    const int ready = static_cast<int>(collector_.collect(members_, events, After::get_cold));
    const bool all_armed = members_.forget_arming();
    // The members that got cold here may ring before the next event of those that are reported now.
    if (ready > 0) kernel_.look_next_time();
    if (ready > 0 || !all_armed || !members_.changed.empty() || must_follow_.load()) {
      members_.lists.is_awake();
      return ready;
    }
    deadline = std::min(deadline, members_.hot.next_due());
    if (members_.hot.count() > 0) deadline = std::min(deadline, monotonic_now() + kBlindSleep);
  }
  const Result<int> woken = sleep_in_turn(waited, deadline, mask);
  if (members_.lists.peers_ring()) stay_awake();
  return woken ? Result<int>(0) : woken;
}

/// @return the number of events found, 0 to go on.
Result<int> EpollSet::sleep(std::span<epoll_event> events, Nanos deadline, const sigset_t* mask) {
  // Such a process has no rings: the kernel has the members.
  if (is_known_forbidden(RareCall::ppoll) && members_.count() == 0) [[unlikely]] {
    const Result<int> found = wait_under_filter(kernel_.file(), events, deadline, mask);
    const std::lock_guard guard(lock_);
    if (found && *found == 0) members_.take_doorbells();  // their wake-up would wake the next wait, too
    return found;
  }
  // The kernel may have something until it was asked.
  std::array<pollfd, 3> waited{
      {{kernel_.file(), POLLIN, POLLIN}, {members_.doorbells.file(), POLLIN, 0}, {-1, POLLIN, 0}}};
  Result<int> found = arm_and_sleep(waited, events, deadline, mask);
  if (!found || *found > 0) return found;
  const bool doorbells_rang = (waited[1].revents | waited[2].revents) != 0;
  const bool only_doorbells = waited[0].revents == 0 || kernel_.has_nested();
  if (doorbells_rang) {
    {
      const std::lock_guard guard(lock_);
      if (waited[1].revents != 0) members_.take_doorbells();
      if (waited[2].fd >= 0) members_.take_turns();
    }
    // Usually the members that rang are ready, and the kernel has nothing to add.
    if (only_doorbells) found = look(events, Beside::nothing, nullptr);
    if (!found || *found > 0) return found;
  }
  // The kernel has told that its members have nothing.
  const bool timed_out = !doorbells_rang && waited[0].revents == 0;
  last_sleep_timed_out_.store(timed_out, std::memory_order_relaxed);
  return look(events, timed_out ? Beside::nothing : Beside::doorbells, nullptr);
}

/// Asks hot members whether their peers have gone, which a thread that never sleeps would not notice.
void EpollSet::ask_hot_for_ends() {
  const std::lock_guard guard(lock_);
  if (members_.hot.count() > kMostAskedForEnds) return;
  members_.hot.for_each([](EpollMember& member) { member.endpoint().look_for_end(); });
}

Result<int> EpollSet::wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask) {
  if (timeout == Nanos::zero() && members_.hot.count() > 0) ask_hot_for_ends();
  const bool kernel_first = kernel_.is_turn(process_waits().kernel_looks.hits());
  const sigset_t* const mask_while_waiting = timeout == Nanos::zero() ? nullptr : mask;
  // After a sleep in vain the next one is likely: its system call asks the kernel, too. Members that are always ready
  // keep the thread from sleeping, so this holds for one call.
  const bool slept_in_vain = last_sleep_timed_out_.load(std::memory_order_relaxed);
  if (slept_in_vain) last_sleep_timed_out_.store(false, std::memory_order_relaxed);
  const bool asks_by_sleeping = slept_in_vain && timeout != Nanos::zero();
  // Present events come before signals.
  Result<int> ready = look(events, kernel_first && !asks_by_sleeping ? Beside::turns : Beside::nothing, nullptr);
  if (ready && *ready == 0 && !asks_by_sleeping && !(kernel_first && !mask_while_waiting))
    ready = look(events, Beside::turns, mask_while_waiting);
  if (ready && *ready == 0 && has_due_calls()) [[unlikely]]
    return found_due_calls(deadline_after(timeout));
  if (!ready || *ready > 0 || timeout == Nanos::zero()) return ready;
  const Nanos deadline = deadline_after(timeout);
  HeldSignals signals(mask);
  for (;;) {
    ready = spin(events, deadline, signals);
    if (!ready || *ready > 0) return keeping(deadline, ready);
    ready = sleep(events, deadline, signals.mask());
    if (!ready || *ready > 0) return keeping(deadline, ready);
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
  if (members_.lists.peers_ring()) stay_awake();
  return wait_awake(events, timeout, mask);
}

Result<int> EpollSet::look_once(std::span<epoll_event> events) {
  constexpr unsigned kLooksAtMembers = 64;  // for each that asks whether their peers have gone
  struct Leaving {
    EpollSet& set;
    ~Leaving() { set.leave_hot_members(); }
  } const leaving{*this};
  if (members_.lists.peers_ring()) stay_awake();
  const unsigned looks = looks_.fetch_add(1, std::memory_order_relaxed);
  const bool has_hot = members_.hot.count() > 0;
  if (has_hot && looks % kLooksAtMembers == 0) ask_hot_for_ends();
  const bool is_turn = !has_hot || looks % kLooksPerKernelLook == 0;
  return look(events, is_turn ? Beside::doorbells : Beside::nothing, nullptr);
}

/// Peers need not ring while this thread looks at the maps.
void EpollSet::stay_awake() {
  const std::lock_guard guard(lock_);
  members_.lists.is_awake();
}

/// No thread looks at the hot members any more: a sleeping thread must be woken to arm them.
void EpollSet::leave_hot_members() {
  if (members_.lists.has_maps()) leave_listed_members();
  if (members_.hot.count() == 0) return;
  ring();
  if (kernel_.take_ring_for_earlier_sleepers()) members_.doorbells.ring_bell();
}

/// The same for members that are listed: peers must ring for the threads that sleep here, or on a set or a poll(2) that
/// watches this set. Those have armed this set once, and this thread has told the peers since that it is awake.
void EpollSet::leave_listed_members() {
  if (sleepers_.load() == 0 && !is_watched()) return;
  bool has_news = false;
  {
    const std::lock_guard guard(lock_);
    members_.lists.will_sleep();
    has_news = members_.lists.any();
  }
  if (!has_news) return;
  note_activity();
  tell_waiters();
}

// -- the set as an endpoint

std::uint32_t EpollSet::ready() noexcept {
  bool is_ready = false;
  // Nested doorbells keep the kernel's file readable until they are taken, also when the last member has gone.
  if (members_.count() > 0 || kernel_.has_nested()) {
    const std::lock_guard guard(lock_);
    members_.take_doorbells();
    members_.take_turns();
    members_.heat_all_due();
    members_.hot.for_each([&is_ready](EpollMember& member) { is_ready = is_ready || member.reportable() != 0; });
    is_ready = is_ready || must_follow_.load();
  }
  // Called afterwards, because the doorbells of an adopted set are among the kernel's members.
  is_ready = is_ready || kernel_.is_ready();
  // Counts as an edge for a set that watches this one.
  if (is_ready && !was_ready_.load(std::memory_order_relaxed)) note_activity();
  was_ready_.store(is_ready, std::memory_order_relaxed);
  return is_ready ? std::uint32_t{EPOLLIN} : 0;
}

WaitFds EpollSet::arm() noexcept {
  const std::lock_guard guard(lock_);
  members_.arm_doorbells();
  if (const int around_both = members_.turns.file(); around_both >= 0) return {{around_both, -1}};
  return {{kernel_.file(), members_.doorbells.file()}};
}

void EpollSet::woken() noexcept {
  note_activity();
  const std::lock_guard guard(lock_);
  members_.take_doorbells();
  members_.take_turns();
}

Nanos EpollSet::deadline() noexcept {
  const std::lock_guard guard(lock_);
  Nanos earliest = members_.hot.next_due();
  bool is_deaf = false;
  members_.hot.for_each([&](EpollMember& member) {
    earliest = std::min(earliest, member.endpoint().deadline());
    is_deaf = is_deaf || member.armed.is_deaf;
  });
  return is_deaf ? std::min(earliest, monotonic_now() + kBlindSleep) : earliest;
}

}  // namespace ringsock::runtime
