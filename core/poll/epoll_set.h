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
#include "core/poll/held_signals.h"
#include "core/poll/ready_lists.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

class EpollSet;

/// One registration: an endpoint under a descriptor number in a set. Guarded by the set's lock, except for the links
/// that endpoint_changed() uses.
class EpollMember final : public Watch, public ListNode<EpollSet> {
 public:
  EpollMember(EpollSet& set, int fd, Ref endpoint) : set_(set), fd_(fd), endpoint_(std::move(endpoint)) {}

  void endpoint_changed() noexcept override;
  Ref owner() noexcept override;
  [[nodiscard]] bool belongs_to_thread() const noexcept override { return false; }

 private:
  friend class EpollSet;
  /// Stores what the endpoint has to report, without regard to triggers.
  void ask();
  /// Asks the endpoint. Returns what epoll_wait(2) would report now, 0 for nothing; edge-triggered members only report
  /// new events.
  std::uint32_t reportable();
  /// Records that the findings of reportable() were reported, which consumes edge and one-shot triggers.
  void reported();
  /// Sets the event, as EPOLL_CTL_ADD and EPOLL_CTL_MOD do. All present conditions count as new.
  void set_event(const epoll_event& event);
  /// Returns whether the findings of reportable() contain anything since the last report.
  [[nodiscard]] bool has_news() const { return found_activity_ != seen_activity_ || (found_ & ~seen_) != 0; }
  [[nodiscard]] bool is_hot() const { return ListNode<EpollSet>::is_linked(); }

  /// Returns whether the peer notes news in a map now: the member may get cold without being armed.
  [[nodiscard]] bool is_listed() const { return listed_.listing.lasts(); }

  EpollSet& set_;
  const int fd_;
  const Ref endpoint_;
  ListedMember listed_;
  /// EPOLL_CTL_DEL has removed it for the caller. Programs often add such a descriptor again at once; it is destroyed
  /// when its endpoint is closed.
  std::atomic<bool> is_parked_{false};
  unsigned reports_while_hot_ = 0;
  epoll_event event_{};
  bool enabled_ = true;              ///< false once EPOLLONESHOT has fired
  bool armed_ = false;               ///< while hot: its doorbells are known to be armed, and still those of arm()
  bool is_deaf_ = false;             ///< the kernel refused its doorbells: it stays hot
  bool is_used_elsewhere_ = false;   ///< the latest ask() found that: EpollSet::follow_users()
  bool is_set_since_fork_ = false;   ///< another process that had it before a fork does not know event_
  bool is_waiting_ = false;          ///< while hot: it was found ready, but there was no room to report it
  std::uint32_t seen_ = 0;           ///< conditions that were reported and have held since
  std::uint32_t found_ = 0;          ///< by the latest reportable()
  std::uint64_t seen_activity_ = 0;  ///< Endpoint::activity() at that report
  std::uint64_t found_activity_ = 0;
  std::uint64_t idle_until_ = 0;   ///< the round in which it gets cold if it does nothing
  WaitFds doorbells_;              ///< the last result of arm()
  Nanos deadline_ = Nanos::max();  ///< while cold: when to look without a doorbell

  std::atomic<bool> changed_{false};
  EpollMember* next_changed_ = nullptr;
};

/// An epoll set. Its descriptor is a kernel epoll descriptor, which holds the set's kernel descriptors just as the
/// caller added them. Members that are endpoints are either
///
/// - *hot*: in a list whose members wait() asks one by one, about 20 ns each. Recently active members are here; or
/// - *cold*: armed (Endpoint::arm()). A second epoll descriptor holds their doorbells, by which the kernel reports
///   them. They cost nothing, however many. Where many members have one peer process, they are also listed
///   (ready_lists.h): the peer then sets a bit instead of ringing, and rings only for a set whose threads sleep; or
/// - disabled (EPOLLONESHOT has fired), or parked (EpollMember::is_parked_).
///
/// Before a thread sleeps all hot members are armed. A member that becomes active gets hot. A member that was idle
/// while others were busy is armed and gets cold. So the cost of wait() depends on the number of active members, not of
/// all members.
///
/// Order: as in the kernel, members are reported in the order of their events. Members whose doorbells rang get hot in
/// the order of the rings. Members that one look finds ready are sorted by the times at which their peers sent
/// (Endpoint::arrival_stamp()). Members for which there is no room are reported first the next time.
///
/// Threads: any number may wait and change the set at once. A thread that leaves wait() with hot members while others
/// sleep wakes one of them, because the doorbells of these members are not armed any more. A set is an endpoint itself,
/// so it can be polled and be a member of other sets.
class EpollSet final : public Endpoint {
 public:
  /// epoll_create1(2). Returns the new descriptor, which is in fd_table().
  static Result<int> create(int flags);
  /// Makes the kernel's epoll set `epoll_fd` one of ours, with the members it has, so that it can hold endpoints.
  /// Threads that sleep in epoll_wait(2) on it are woken; see forget_wake_up(). Errors: EBADF, EINVAL no epoll set,
  /// EMFILE, ENOMEM. Harmless when it is adopted already.
  /// @param copies     other descriptors of that set (dup(2)), which become ours with it
  /// @param is_shared  other processes wait on it, too: it gets no member that would wake them, and threads of this
  ///                   process that sleep on it already are not woken
  static Status adopt(int epoll_fd, std::span<const int> copies = {}, bool is_shared = false);
  /// Removes the event that woke the caller from the results of the kernel's epoll_wait(2) on a set that was adopted
  /// meanwhile.
  /// @return how many of the `count` events are left.
  static int forget_wake_up(epoll_event* events, int count);
  ~EpollSet() override;

  /// epoll_ctl(2), `event` not null unless `op` is EPOLL_CTL_DEL. Errors: EBADF, EEXIST, EINVAL, ELOOP, ENOENT, ENOMEM,
  /// ENOSPC, EPERM.
  Status control(int op, int fd, const epoll_event* event);
  /// epoll_pwait2(2). @param timeout 0 looks once, Nanos::max() waits for ever. Errors: EINTR, EINVAL `events` is
  /// empty, EBADF the set was closed meanwhile.
  Result<int> wait(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask);
  /// Returns where its waits are counted for vma_stats(8): a slot of ProcessWaits::counters, or WaitCounters::kNowhere.
  /// The slot has the name of the descriptor of the first wait.
  int counter_slot(int epoll_fd);

  std::uint32_t ready() noexcept override;
  WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  void closed() noexcept override;
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override { return true; }
  EpollSet* as_epoll_set() noexcept override { return this; }
  void add_fork_locks(ForkLocks& locks) override;
  /// The child shares the kernel's epoll file with its parent, but has its own doorbells of endpoints.
  void after_fork(ForkSide side) noexcept override;

 protected:
  void member_closed(Endpoint& endpoint) noexcept override;
  void member_left_to_kernel(Endpoint& endpoint) noexcept override;

 private:
  friend class EpollMember;
  using Key = std::pair<Endpoint*, int>;  ///< as in the kernel: the same endpoint may be in under several descriptors
  using Members = std::map<Key, std::unique_ptr<EpollMember>>;
  /// Members that have left the set. They and their references are destroyed after the lock is released.
  using Departed = Members;

  EpollSet(UniqueFd kernel, UniqueFd doorbells, UniqueFd bell);
  /// Makes a set around the epoll file of `epoll_fd`.
  static Result<Ref> wrap(int epoll_fd);

  // epoll_set.cc: membership. add() and the functions that control() calls take the lock; the caller of the others
  // holds it.
  Status control_endpoint(int op, int fd, Ref endpoint, const epoll_event* event);
  Status control_kernel(int op, int fd, const epoll_event* event);
  Status check_nesting(EpollSet& inner);
  bool reaches(const EpollSet& other, int levels);
  Status add(int fd, Ref endpoint, const epoll_event& event);
  Status add_parked(EpollMember& member, const epoll_event& event);
  Status modify(EpollMember& member, const epoll_event& event);
  bool park(EpollMember& member);
  void forget_doorbells_of_parked(Endpoint& endpoint);
  void prepare_for_one_more();
  void ask_for_stamps(EpollMember& newest);
  void remove(Members::iterator place, Departed& departed);
  void leave_lists(EpollMember& member);
  void make_hot(EpollMember& member, std::uint64_t idle_until);
  void make_cold(EpollMember& member);
  void drain_changed();
  void count_members();
  bool arm_member(EpollMember& member);
  bool arm_or_list(EpollMember& member);
  [[nodiscard]] bool should_list(EpollMember& member);
  void take_listed();
  bool register_doorbell(int& fd, Endpoint& endpoint, bool is_new);
  void drop_doorbell(int fd, Endpoint& endpoint);
  void forget_doorbells(EpollMember& member);
  /// Wakes the threads that sleep in wait().
  void ring();
  /// Also wakes threads that sleep in the kernel's epoll_wait(), which they entered before the set was adopted.
  void ring_uncounted_sleepers();

  // epoll_wait.cc
  class CountedSleeper;
  enum class After { stay_hot, get_cold };
  bool is_kernels_turn();
  void ask_hot_for_ends();
  int collect_locked(std::span<epoll_event> events, After after);
  std::size_t report_waiting_locked(std::span<epoll_event> events);
  std::size_t ask_only_one_locked(epoll_event& event, After after);
  void scan_locked(std::size_t members, After after);
  void put_found_in_order_locked();
  void find_overlooked_locked(std::uint32_t now);
  std::size_t report_found_locked(std::span<epoll_event> events);
  void report_locked(EpollMember& member, epoll_event& event);
  void get_cold_if_possible(EpollMember& member, After after);
  void unlist_if_busy_alone(EpollMember& member);
  [[nodiscard]] bool is_to_get_cold(EpollMember& member);
  void cool_down_locked();
  void arm_hot_locked();
  bool forget_arming_locked();
  void wake_due_locked();
  void take_doorbells_locked();
  Result<int> look_at_kernel(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang);
  Result<int> look(std::span<epoll_event> events, bool kernel_too, const sigset_t* mask);
  void follow_users();
  Result<int> spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals);
  Result<int> arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                            const sigset_t* mask);
  Result<int> sleep(std::span<epoll_event> events, Nanos deadline, const sigset_t* mask);
  void leave_hot_members();
  void leave_listed_members();
  void stay_awake();
  void let_peers_ring();
  void need_no_rings();
  Result<int> wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask);

  /// Makes an epoll file for doorbells, with `bell` in it.
  Status nest_doorbells();
  [[nodiscard]] Status require_epoll_file() const;
  static Status make_doorbells(UniqueFd& doorbells, UniqueFd& bell);

  bool is_adopted_ = false;  ///< doorbells_ is a member of kernel_; set before others know the set
  // The descriptors change only in a forked child, before it can use the set.
  const UniqueFd kernel_;  ///< the epoll file behind the caller's descriptor, under a number of our own
  UniqueFd doorbells_;     ///< epoll: doorbells of endpoints, edge-triggered, and bell_
  UniqueFd bell_;          ///< eventfd that wakes the threads in wait(); never read: edge-triggered

  Mutex lock_;
  Members members_;
  std::size_t parked_count_ = 0;
  ReadyLists lists_;
  std::atomic<bool> has_maps_{false};    ///< ReadyLists::has_maps(), for those without the lock
  std::atomic<bool> peers_ring_{false};  ///< peers have been told that threads sleep: ReadyBits::will_sleep()
  /// The endpoint whose woken() is called when the doorbell rings, and the number of members that have it.
  struct Doorbell {
    Endpoint* owner = nullptr;
    unsigned users = 0;
  };
  std::unordered_map<int, Doorbell> known_doorbells_;
  IntrusiveList<EpollMember, EpollSet> hot_;
  std::atomic<std::size_t> hot_count_{0};
  std::size_t waiting_count_ =
      0;  ///< number of members with EpollMember::is_waiting_, which are the first of hot_, in order
  /// A member that a scan found ready.
  struct Found {
    EpollMember* member;
    std::uint32_t age;  ///< of the event, in units of order_stamp()
    std::size_t place;  ///< position in the scan
  };
  // The results of the latest scan. Room for all members is reserved when they are added.
  std::vector<Found> found_;
  std::vector<EpollMember*> asked_;               ///< members that were asked and not ready
  std::uint32_t scan_began_ = 0;                  ///< order_stamp()
  std::set<std::pair<Nanos, EpollMember*>> due_;  ///< cold members with a deadline
  std::uint64_t round_ = 0;                       ///< calls of wait() that reported endpoints
  std::atomic<std::size_t> member_count_{0};
  std::atomic<unsigned> rounds_since_kernel_look_{0};
  std::atomic<std::uint32_t> kernel_looked_at_{0};  ///< order_stamp()
  std::atomic<bool> kernel_had_some_{false};        ///< at that look
  std::atomic<bool> has_kernel_members_{false};
  std::atomic<bool> was_ready_{false};
  std::atomic<bool> must_follow_{false};  ///< there are members with EpollMember::is_used_elsewhere_
  std::atomic<int> sleepers_{0};
  std::atomic<int> rings_after_adoption_{0};  ///< of ring_uncounted_sleepers() by wait()
  std::atomic<EpollMember*> changed_{nullptr};
  std::atomic<int> counter_slot_;
  std::atomic<bool> has_counters_{false};  ///< or there are none left
};

/// The calls on descriptor numbers. A set that was not adopted is the kernel's, and adding an endpoint to it fails with
/// EINVAL.
Status epoll_control(int epoll_fd, int op, int fd, const epoll_event* event);
/// Errors: those of EpollSet::wait(); EBADF, EINVAL `epoll_fd` is no epoll set, or `max_events` is not positive.
Result<int> epoll_wait_for(int epoll_fd, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask);

}  // namespace ringsock::runtime
