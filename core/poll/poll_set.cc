#include "core/poll/poll_set.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/barrier.h"
#include "core/base/handlers_wait.h"
#include "core/base/poll_until.h"
#include "core/base/unique_fd.h"
#include "core/poll/held_signals.h"
#include "core/poll/process_waits.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/used_elsewhere.h"
#include "core/statistics/statistics.h"

namespace ringsock::runtime {

static_assert(POLLIN == EPOLLIN && POLLPRI == EPOLLPRI && POLLOUT == EPOLLOUT && POLLERR == EPOLLERR &&
              POLLHUP == EPOLLHUP && POLLRDNORM == EPOLLRDNORM && POLLWRNORM == EPOLLWRNORM && POLLRDHUP == EPOLLRDHUP);

namespace {

constexpr std::uint32_t kAlwaysReported = POLLERR | POLLHUP;
constexpr std::size_t kMostCounted = 4096;

std::uint32_t interest_of(const pollfd& entry) { return static_cast<std::uint16_t>(entry.events) | kAlwaysReported; }

/// The watches of a call. They stay where they are, because endpoints know their places.
class Watches {
 public:
  explicit Watches(std::pmr::memory_resource& memory) : memory_(&memory) {}
  Watches(const Watches&) = delete;
  Watches& operator=(const Watches&) = delete;
  ~Watches() {
    clear();
    if (most_ > 0) memory_.deallocate(first_, most_);
  }
  /// Called once, before the first add(), or with the same number again.
  void reserve(std::size_t most) {
    if (most_ > 0) return;
    first_ = memory_.allocate(most);
    most_ = most;
  }
  void add(Endpoint& endpoint, std::uint32_t interest, int bell) {
    std::construct_at(first_ + count_, endpoint, interest, bell);
    ++count_;
  }
  void clear() { std::destroy_n(first_, std::exchange(count_, 0)); }

 private:
  std::pmr::polymorphic_allocator<SleeperWatch> memory_;
  SleeperWatch* first_ = nullptr;
  std::size_t count_ = 0;
  std::size_t most_ = 0;
};

/// One call of poll_endpoints() that includes endpoints.
class PollCall {
 public:
  PollCall(std::span<pollfd> entries, std::pmr::memory_resource& memory)
      : entries_(entries),
        members_(&memory),
        kernel_(&memory),
        kernel_index_(&memory),
        doorbells_(&memory),
        waited_(&memory),
        sleepers_(memory) {}
  PollCall(const PollCall&) = delete;
  PollCall& operator=(const PollCall&) = delete;
  ~PollCall() {
    if (is_inside_) leave_members();
  }

  /// @return false when no descriptor is an endpoint's.
  bool look_up() {
    reserve_for_few();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].revents = 0;
      if (entries_[i].fd < 0) continue;
      if (Ref endpoint = fd_table().get_settled(entries_[i].fd)) {
        members_.push_back({std::move(endpoint), i});
      } else {
        kernel_.push_back(entries_[i]);
        kernel_index_.push_back(i);
      }
    }
    return !members_.empty();
  }

  Result<int> run(Nanos timeout, const sigset_t* mask);

  /// Up to this number of entries the call needs no more than kBytesForFew: two doorbells for each of them.
  static constexpr std::size_t kFew = 4;
  static const std::size_t kBytesForFew;

  /// Returns whether a member's number has become another file's meanwhile, a kernel socket's for example, or was
  /// closed: the call must then start again.
  [[nodiscard]] bool must_start_anew() const { return must_start_anew_; }
  /// Returns whether the first look found nothing.
  [[nodiscard]] bool has_waited() const { return has_waited_; }
  /// Returns what is left of the time-out then.
  [[nodiscard]] Nanos time_left(Nanos timeout) const {
    if (!deadline_ || *deadline_ == Nanos::max()) return timeout;
    return std::max(Nanos::zero(), *deadline_ - monotonic_now());
  }

 private:
  struct Member {
    Ref endpoint;
    std::size_t index;  ///< in entries_
    bool rung = false;  ///< a descriptor of arm() is readable
  };
  /// A descriptor of arm(), and its member.
  struct Doorbell {
    int fd;
    std::size_t member;
  };

  void reserve_for_few();
  /// @param kernel_too also look at endpoints whose readiness the kernel reports
  int look_at_members(bool kernel_too = true);
  void arm_members();
  Result<int> look_at_kernel(const sigset_t* mask);
  Result<int> look(bool kernel_too, const sigset_t* mask);
  Result<int> first_look(const sigset_t* mask);
  Result<int> spin(Nanos deadline, HeldSignals& signals);
  void count_spin_paid();
  void offer_cpu();
  void enter_members();
  void leave_members();
  void look_at_numbers();
  Result<int> wait(Nanos timeout, const sigset_t* mask);
  Result<int> sleep(Nanos deadline, const sigset_t* mask);
  Result<int> sleep_on_descriptors(Nanos deadline, const sigset_t* mask);
  [[nodiscard]] short edges_of(const Doorbell& doorbell) const;
  Result<int> wait_for_doorbells(Nanos wake_at, const sigset_t* mask);
  Result<int> wait_for_many_doorbells(Nanos wake_at, const sigset_t* mask);
  Result<int> wait_beside_kernel(std::span<pollfd> waited, Nanos wake_at, const sigset_t* mask);
  Nanos wake_up_time(Nanos deadline);
  void take_doorbells();
  void copy_kernel_results();

  std::span<pollfd> entries_;
  std::pmr::vector<Member> members_;
  bool must_start_anew_ = false;
  bool has_waited_ = false;
  bool is_inside_ = false;  ///< counted as a call at its members
  std::optional<Nanos> deadline_;
  std::pmr::vector<pollfd> kernel_;
  std::pmr::vector<std::size_t> kernel_index_;
  std::pmr::vector<Doorbell> doorbells_;
  std::pmr::vector<pollfd> waited_;  ///< the entries of the latest sleep
  Watches sleepers_;
};

constexpr std::size_t PollCall::kBytesForFew =
    kFew * (sizeof(Member) + sizeof(pollfd) + sizeof(std::size_t) + sizeof(SleeperWatch) + 2 * sizeof(Doorbell)) +
    (2 * kFew + 1) * sizeof(pollfd) + 6 * alignof(std::max_align_t);

/// Vectors that grow leave what they had behind in the memory of the call.
void PollCall::reserve_for_few() {
  if (entries_.size() > kFew) return;
  members_.reserve(entries_.size());
  kernel_.reserve(entries_.size());
  kernel_index_.reserve(entries_.size());
}

int PollCall::look_at_members(bool kernel_too) {
  int ready = 0;
  for (Member& member : members_) {
    pollfd& entry = entries_[member.index];
    if (!kernel_too && member.endpoint->asks_kernel()) {
      entry.revents = 0;
      continue;
    }
    const std::uint32_t found = member.endpoint->ready();
    std::uint32_t events = with_normal_bands(found) & interest_of(entry);
    if ((found & kUsedElsewhere) != 0 && events != 0) [[unlikely]] {
      static_cast<void>(follow_user(*member.endpoint));
      events = with_normal_bands(member.endpoint->ready()) & interest_of(entry);
    }
    const bool is_closed = member.endpoint->is_closed();
    if (is_closed && member.endpoint->has_left_to_kernel()) must_start_anew_ = true;
    entry.revents = static_cast<short>(is_closed ? POLLNVAL : events);
    if (entry.revents != 0) ++ready;
  }
  thread_waits.tally.from_endpoints = ready;
  return ready;
}

void PollCall::copy_kernel_results() {
  for (std::size_t i = 0; i < kernel_.size(); ++i) entries_[kernel_index_[i]].revents = kernel_[i].revents;
}

Result<int> PollCall::look_at_kernel(const sigset_t* mask) {
  const timespec at_once{};
  std::optional<BeforeSleep> letting_through;
  if (mask != nullptr) letting_through.emplace(mask);
  const bool is_interrupted = letting_through && letting_through->is_interrupted();
  const int ready = ::ppoll(kernel_.data(), kernel_.size(), &at_once, is_interrupted ? nullptr : mask);
  if (ready < 0) return Error::last("ppoll");
  if (ready == 0 && is_interrupted) return Error{EINTR, "ppoll"};
  copy_kernel_results();
  return ready;
}

Result<int> PollCall::look(bool kernel_too, const sigset_t* mask) {
  const int ready = look_at_members(kernel_too);
  if (!kernel_too || (kernel_.empty() && (!mask || ready > 0))) return ready;
  // When there is something to report a signal must stay pending, as in ppoll(2).
  Result<int> kernel_ready = look_at_kernel(ready > 0 ? nullptr : mask);
  if (!kernel_ready) return kernel_ready;
  return ready + *kernel_ready;
}

/// The kernel is asked by each call, unless the process has said after how many hits.
Result<int> PollCall::first_look(const sigset_t* mask) {
  const unsigned hits = process_waits().kernel_looks.hits();
  if (hits != KernelLooks::kAutomatic && thread_waits.hits < hits) [[unlikely]] {
    if (Result<int> ready = look(false, nullptr); !ready || *ready > 0) {
      ++thread_waits.hits;
      return ready;
    }
  }
  thread_waits.hits = 0;
  return look(true, mask);
}

Result<int> PollCall::spin(Nanos deadline, HeldSignals& signals) {
  const auto asks_kernel = [](const Member& member) { return member.endpoint->asks_kernel(); };
  if (std::all_of(members_.begin(), members_.end(), asks_kernel)) return 0;
  // The kernel is asked about once a microsecond, which is a fifth of what asking costs.
  constexpr std::size_t kLooksPerKernelLook = 16;
  const auto rounds_per_kernel_look =
      static_cast<unsigned>(std::max<std::size_t>(1, kLooksPerKernelLook / members_.size()));
  Spinner spinner(WaitFor::readiness, deadline, signals, rounds_per_kernel_look);
  const unsigned rounds = process_waits().kernel_looks.rounds(rounds_per_kernel_look);
  unsigned round = 0;
  while (spinner.again()) {
    Result<int> ready = look(++round % rounds == 0, nullptr);
    if (ready && *ready == 0 && has_due_calls()) [[unlikely]]
      return kForDueCalls;
    if (ready && *ready == 0) continue;
    spinner.paid_off();
    count_spin_paid();
    return ready;
  }
  return 0;
}

void PollCall::count_spin_paid() {
  for (const Member& member : members_) {
    SocketStatistics* const counters = member.endpoint->statistics();
    if (counters != nullptr && entries_[member.index].revents != 0) counters->count_spin_paid();
  }
}

/// Yields, because a caller that does not wait will probably poll again at once.
void PollCall::offer_cpu() {
  const auto waits = [](const Member& member) { return member.endpoint->waits_for_our_cpus(); };
  if (std::any_of(members_.begin(), members_.end(), waits)) ::sched_yield();
}

Nanos PollCall::wake_up_time(Nanos deadline) {
  for (const Member& member : members_) deadline = std::min(deadline, member.endpoint->deadline());
  return deadline;
}

void PollCall::take_doorbells() {
  for (Member& member : members_) {
    if (!std::exchange(member.rung, false)) continue;
    member.endpoint->woken();
    // Other threads may have been about to sleep on the doorbell that this call consumed.
    member.endpoint->notify_watchers();
  }
}

/// ppoll(2) on `waited`, whose last entries stand for kernel_.
Result<int> PollCall::wait_beside_kernel(std::span<pollfd> waited, Nanos wake_at, const sigset_t* mask) {
  const std::span<pollfd> kernel_part = waited.last(kernel_.size());
  std::copy(kernel_.begin(), kernel_.end(), kernel_part.begin());
  Result<int> woken = sleep_until(WaitFor::readiness, waited, wake_at, mask);
  if (woken) std::copy(kernel_part.begin(), kernel_part.end(), kernel_.begin());
  return woken;
}

/// Returns the events to poll for: a kernel socket reports what it is ready for, a doorbell is only ever readable.
short PollCall::edges_of(const Doorbell& doorbell) const {
  const Member& member = members_[doorbell.member];
  if (!member.endpoint->asks_kernel()) return POLLIN;
  return static_cast<short>(POLLIN | (entries_[member.index].events & (POLLOUT | POLLRDHUP)));
}

Result<int> PollCall::wait_for_doorbells(Nanos wake_at, const sigset_t* mask) {
  waited_.clear();
  waited_.reserve(doorbells_.size() + 1 + kernel_.size());
  for (const Doorbell& doorbell : doorbells_) waited_.push_back({doorbell.fd, edges_of(doorbell), 0});
  waited_.push_back({thread_bell(), POLLIN, 0});
  waited_.resize(waited_.size() + kernel_.size());

  Result<int> woken = wait_beside_kernel(waited_, wake_at, mask);
  if (!woken) return woken;
  for (std::size_t i = 0; i < doorbells_.size(); ++i) {
    if (waited_[i].revents != 0) members_[doorbells_[i].member].rung = true;
  }
  if (waited_[doorbells_.size()].revents != 0) silence_thread_bell();
  return woken;
}

/// Waits when the caller's descriptors are within RLIMIT_NOFILE, which limits the entries of ppoll(2), but those with
/// the doorbells are not.
[[gnu::noinline]] Result<int> PollCall::wait_for_many_doorbells(Nanos wake_at, const sigset_t* mask) {
  const UniqueFd all(::epoll_create1(EPOLL_CLOEXEC));
  if (!all) return Error::last("epoll_create1");
  for (const Doorbell& doorbell : doorbells_) {
    epoll_event event{static_cast<std::uint32_t>(edges_of(doorbell)), {.u64 = doorbell.member}};
    if (::epoll_ctl(all.get(), EPOLL_CTL_ADD, doorbell.fd, &event) != 0 && errno != EEXIST)
      return Error::last("epoll_ctl");
  }
  std::pmr::vector<pollfd> waited({{all.get(), POLLIN, 0}, {thread_bell(), POLLIN, 0}}, kernel_.get_allocator());
  waited.resize(waited.size() + kernel_.size());

  Result<int> woken = wait_beside_kernel(waited, wake_at, mask);
  if (!woken) return woken;
  std::array<epoll_event, 64> rung;
  const int count = ::epoll_wait(all.get(), rung.data(), static_cast<int>(rung.size()), 0);
  for (int i = 0; i < count; ++i) members_[rung[static_cast<std::size_t>(i)].data.u64].rung = true;
  if (waited[1].revents != 0) silence_thread_bell();
  return woken;
}

Result<int> PollCall::sleep_on_descriptors(Nanos deadline, const sigset_t* mask) {
  const Nanos wake_at = wake_up_time(deadline);
  Result<int> woken = wait_for_doorbells(wake_at, mask);
  if (!woken && woken.error().code == EINVAL) woken = wait_for_many_doorbells(wake_at, mask);
  sleepers_.clear();
  if (!woken) return woken;
  take_doorbells();
  copy_kernel_results();
  const auto kernel_ready =
      std::count_if(kernel_.begin(), kernel_.end(), [](const pollfd& e) { return e.revents != 0; });
  return look_at_members() + static_cast<int>(kernel_ready);
}

void PollCall::arm_members() {
  const AsymmetricBarrier::Batch one_barrier;
  doorbells_.clear();
  doorbells_.reserve(2 * members_.size());
  sleepers_.reserve(members_.size());
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Endpoint& endpoint = *members_[i].endpoint;
    sleepers_.add(endpoint, interest_of(entries_[members_[i].index]), thread_bell());
    const WaitFds wait = endpoint.arm();
    for (const int fd : wait.fd) {
      if (fd >= 0) doorbells_.push_back({fd, i});
    }
  }
}

Result<int> PollCall::sleep(Nanos deadline, const sigset_t* mask) {
  arm_members();
  // The members are watched and armed: every event after this look wakes the thread.
  if (look_at_members() > 0 || take_own_ring()) {
    sleepers_.clear();
    return look(true, nullptr);
  }
  return sleep_on_descriptors(deadline, mask);
}

Result<int> PollCall::run(Nanos timeout, const sigset_t* mask) {
  constexpr std::size_t kMostLookedAtClosely = 16;
  if (members_.size() <= kMostLookedAtClosely) {
    for (const Member& member : members_) member.endpoint->look_for_end();
  }
  Result<int> ready = first_look(mask);
  if (!ready || *ready > 0) return ready;
  if (has_due_calls()) [[unlikely]]
    return found_due_calls(deadline_after(timeout));
  if (timeout == Nanos::zero()) {
    ::pthread_testcancel();
    offer_cpu();
    return 0;
  }
  enter_members();
  ready = wait(timeout, mask);
  if (ready) {
    look_at_numbers();
  } else {
    ready = keeping(deadline_.value_or(Nanos::max()), ready);
  }
  return ready;
}

/// Keeps the connections open while the call waits (Calls::keep()). Calls that wait for more members than a program has
/// use for are not counted, because an endpoint counts only 16 bits of calls.
void PollCall::enter_members() {
  has_waited_ = true;
  is_inside_ = members_.size() <= kMostCounted;
  if (!is_inside_) return;
  for (const Member& member : members_) member.endpoint->references.begin_call();
}

void PollCall::leave_members() {
  for (const Member& member : members_) Calls::end(*member.endpoint);
}

/// The kernel finds the files by their numbers again when it is woken.
void PollCall::look_at_numbers() {
  for (const Member& member : members_) {
    if (!fd_table().refers_to(entries_[member.index].fd, *member.endpoint)) must_start_anew_ = true;
  }
}

Result<int> PollCall::wait(Nanos timeout, const sigset_t* mask) {
  Result<int> ready = 0;
  const Nanos deadline = deadline_after(timeout);
  deadline_ = deadline;
  HeldSignals signals(mask);
  for (;;) {
    ready = spin(deadline, signals);
    if (!ready || *ready > 0) return ready;
    ready = sleep(deadline, signals.mask());
    if (!ready || *ready > 0) return ready;
    if (deadline != Nanos::max() && monotonic_now() >= deadline) return 0;
  }
}

[[gnu::noinline]] Result<int> poll_in(std::pmr::memory_resource& memory, std::span<pollfd> entries, Nanos timeout,
                                      const sigset_t* mask, bool& has_waited) {
  for (;;) {
    PollCall call(entries, memory);
    if (!call.look_up()) return poll_until(entries, timeout == Nanos::zero() ? timeout : deadline_after(timeout), mask);
    auto ready = call.run(timeout, mask);
    has_waited = has_waited || call.has_waited();
    if (!call.must_start_anew()) return ready;
    timeout = call.time_left(timeout);
  }
}

/// Gives the call so many bytes of the stack; what it needs beyond them is from the heap.
template <std::size_t Bytes>
[[gnu::noinline]] Result<int> poll_with(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask,
                                        bool& has_waited) {
  std::array<std::byte, Bytes> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());
  return poll_in(memory, entries, timeout, mask, has_waited);
}

}  // namespace

Result<int> poll_uncounted(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask, bool& has_waited) {
  // A signal handler on an alternate stack of SIGSTKSZ (8192) bytes may poll a few descriptors.
  if (entries.size() <= PollCall::kFew) return poll_with<PollCall::kBytesForFew>(entries, timeout, mask, has_waited);
  return poll_with<4096>(entries, timeout, mask, has_waited);
}

Result<int> poll_endpoints(std::span<pollfd> entries, Nanos timeout, const sigset_t* mask) {
  bool has_waited = false;
  return counted_wait(WaitCounters::kPoll, [&] { return poll_uncounted(entries, timeout, mask, has_waited); });
}

}  // namespace ringsock::runtime
