// epoll(7) over descriptors of ours and of the kernel alike.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/held_signals.h"

namespace ringsock::runtime {

class EpollSet;
struct VmaIomuxSlot;

/// One registration: an endpoint under a descriptor number in a set. Guarded by the set's lock, but for the links that
/// endpoint_changed() uses.
class EpollMember final : public Watch, public ListNode<EpollSet> {
 public:
  EpollMember(EpollSet& set, int fd, Ref endpoint) : set_(set), fd_(fd), endpoint_(std::move(endpoint)) {}

  void endpoint_changed() noexcept override;
  Ref owner() noexcept override;
  [[nodiscard]] bool belongs_to_thread() const noexcept override { return false; }

 private:
  friend class EpollSet;
  /// Asks the endpoint; what epoll_wait(2) would report now, 0 nothing. Edge-triggered: only if it was not reported
  /// before.
  std::uint32_t reportable();
  /// What reportable() found was reported: edge and one-shot triggers are used up.
  void reported();
  /// As after EPOLL_CTL_ADD and EPOLL_CTL_MOD: whatever is there counts as new.
  void set_event(const epoll_event& event);
  [[nodiscard]] bool is_hot() const { return ListNode<EpollSet>::is_linked(); }

  EpollSet& set_;
  const int fd_;
  const Ref endpoint_;
  epoll_event event_{};
  bool enabled_ = true;              ///< false once EPOLLONESHOT has fired
  bool armed_ = false;               ///< while hot: its doorbells are known to be armed
  bool is_deaf_ = false;             ///< the kernel would not have its doorbells: it stays hot
  std::uint32_t seen_ = 0;           ///< conditions that were reported and have held since
  std::uint32_t seen_activity_ = 0;  ///< Endpoint::activity() when they were
  std::uint32_t found_ = 0;          ///< by the latest reportable()
  std::uint32_t found_activity_ = 0;
  std::uint64_t idle_until_ = 0;   ///< the round in which it gets cold if it does nothing
  WaitFds doorbells_;              ///< as arm() told last
  Nanos deadline_ = Nanos::max();  ///< while cold: when to look without a doorbell

  std::atomic<bool> changed_{false};
  EpollMember* next_changed_ = nullptr;
};

/// An epoll set. Its descriptor is a kernel epoll descriptor, which holds the set's kernel descriptors just as the
/// caller added them. Members that are endpoints are either
///
/// - *hot*: in a list whose members wait() asks one by one, some 20 ns each. Whoever did something lately is here; or
/// - *cold*: armed (Endpoint::arm()), so that the kernel tells about them through a second epoll descriptor that holds
/// their
///   doorbells. They cost nothing, however many; or
/// - disabled (EPOLLONESHOT has fired).
///
/// Before a thread sleeps all hot members are armed; a member that does something gets hot; one that did nothing while
/// others were busy is armed and gets cold. So a wait() costs what is active, not what is watched.
///
/// Threads: any number may wait and change the set at once. Whenever one leaves wait() with hot members behind while
/// others sleep, it wakes them: their doorbells are not armed any more. A set is an endpoint itself, so it can be
/// polled and be a member of other sets.
class EpollSet final : public Endpoint {
 public:
  /// epoll_create1(2). The new descriptor, in fd_table().
  static Result<int> create(int flags);
  /// Makes the kernel's epoll set `epoll_fd` one of ours, with the members it has, so that it can hold endpoints.
  /// Threads that sleep in epoll_wait(2) on it are woken: see forget_wake_up(). Errors: EBADF, EINVAL no epoll set,
  /// EMFILE, ENOMEM. Harmless when it is one of ours already.
  static Status adopt(int epoll_fd);
  /// What epoll_wait(2) of the kernel gave for a set that was adopted meanwhile, without the event that woke the
  /// caller.
  /// @return how many of the `count` are left.
  static int forget_wake_up(epoll_event* events, int count);
  ~EpollSet() override;

  /// epoll_ctl(2), `event` not null unless `op` is EPOLL_CTL_DEL. Errors: EBADF, EEXIST, EINVAL, ELOOP, ENOENT, ENOMEM,
  /// ENOSPC, EPERM.
  Status control(int op, int fd, const epoll_event* event);
  /// epoll_pwait2(2). @param timeout 0 looks once, Nanos::max() waits for ever. Errors: EINTR, EINVAL `events` is
  /// empty, EBADF the set was closed meanwhile.
  Result<int> wait(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask);
  /// Where its waits are counted for vma_stats(8), under the name of the descriptor by which the first one came. Null:
  /// nowhere.
  VmaIomuxSlot* counters(int epoll_fd);

  std::uint32_t ready() noexcept override;
  WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  void closed() noexcept override;
  EpollSet* as_epoll_set() noexcept override { return this; }
  void add_fork_locks(ForkLocks& locks) override;
  /// The child shares the epoll file, as without us; what tells of endpoints is its own.
  void after_fork(ForkSide side) noexcept override;

 protected:
  void member_closed(Endpoint& endpoint) noexcept override;
  void member_left_to_kernel(Endpoint& endpoint) noexcept override;

 private:
  friend class EpollMember;
  using Key = std::pair<Endpoint*, int>;  ///< as in the kernel: the same endpoint may be in under several descriptors
  using Members = std::map<Key, std::unique_ptr<EpollMember>>;
  /// Members that have left the set; destroyed, with their references, after the lock is released.
  using Departed = std::vector<std::unique_ptr<EpollMember>>;

  EpollSet(UniqueFd kernel, UniqueFd doorbells, UniqueFd bell);
  /// A set around the epoll file behind `epoll_fd`.
  static Result<Ref> wrap(int epoll_fd);

  // epoll_set.cc: membership; add() and what control() calls take the lock, the others need it
  Status control_endpoint(int op, int fd, Ref endpoint, const epoll_event* event);
  Status control_kernel(int op, int fd, const epoll_event* event);
  Status check_nesting(EpollSet& inner);
  bool reaches(const EpollSet& other, int levels);
  Status add(int fd, Ref endpoint, const epoll_event& event);
  Status modify(EpollMember& member, const epoll_event& event);
  void remove(Members::iterator place, Departed& departed);
  void leave_lists(EpollMember& member);
  void make_hot(EpollMember& member, std::uint64_t idle_until);
  void make_cold(EpollMember& member);
  void drain_changed();
  bool arm_member(EpollMember& member);
  bool register_doorbell(int fd, Endpoint& endpoint, bool is_new);
  void drop_doorbell(int fd, Endpoint& endpoint);
  void forget_doorbells(EpollMember& member);
  /// Wakes those who sleep in wait().
  void ring();
  /// Also those that sleep in the kernel's epoll_wait(), which they entered before the set was adopted.
  void ring_uncounted_sleepers();

  // epoll_wait.cc
  class CountedSleeper;
  enum class After { stay_hot, get_cold };
  int collect_locked(std::span<epoll_event> events, After after);
  void cool_down_locked();
  void arm_hot_locked();
  void wake_due_locked();
  void take_doorbells_locked();
  Result<int> look_at_kernel(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang);
  Result<int> look(std::span<epoll_event> events, bool kernel_too, const sigset_t* mask);
  Result<int> spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals);
  Result<int> arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                            const sigset_t* mask);
  Result<int> sleep(std::span<epoll_event> events, Nanos deadline, const sigset_t* mask);
  void leave_hot_members();
  Result<int> wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask);
  [[nodiscard]] std::size_t hot_count() const { return hot_count_.load(std::memory_order_relaxed); }

  /// An epoll file for doorbells, with `bell` in it.
  static Status make_doorbells(UniqueFd& doorbells, UniqueFd& bell);

  bool is_adopted_ = false;  ///< doorbells_ is a member of kernel_; set before others know the set
  // The descriptors change only in a forked child, before it can use the set.
  const UniqueFd kernel_;  ///< the epoll file behind the caller's descriptor, under a number of our own
  UniqueFd doorbells_;     ///< epoll: doorbells of endpoints, edge-triggered, and bell_
  UniqueFd bell_;          ///< eventfd that wakes the threads in wait(); never read: edge-triggered

  Mutex lock_;
  Members members_;
  /// Whose woken() is called when it rings, and how many members have it among theirs.
  struct Doorbell {
    Endpoint* owner = nullptr;
    unsigned users = 0;
  };
  std::unordered_map<int, Doorbell> known_doorbells_;
  IntrusiveList<EpollMember, EpollSet> hot_;
  std::atomic<std::size_t> hot_count_{0};
  std::set<std::pair<Nanos, EpollMember*>> due_;  ///< cold members with a deadline
  std::uint64_t round_ = 0;                       ///< calls of wait() that reported endpoints
  std::atomic<std::size_t> member_count_{0};
  std::atomic<unsigned> rounds_since_kernel_look_{0};
  std::atomic<bool> has_kernel_members_{false};
  std::atomic<bool> was_ready_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<int> rings_after_adoption_{0};  ///< of ring_uncounted_sleepers() by wait()
  std::atomic<EpollMember*> changed_{nullptr};
  std::atomic<VmaIomuxSlot*> counters_{nullptr};
  std::atomic<bool> has_counters_{false};  ///< or there are none left
};

/// The calls on descriptor numbers. A set that is not ours is the kernel's business, but cannot hold endpoints: EINVAL.
Status epoll_control(int epoll_fd, int op, int fd, const epoll_event* event);
/// Errors: those of EpollSet::wait(); EBADF, EINVAL `epoll_fd` is no epoll set, or `max_events` is not positive.
Result<int> epoll_wait_for(int epoll_fd, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask);

}  // namespace ringsock::runtime
