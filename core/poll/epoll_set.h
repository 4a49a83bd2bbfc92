// epoll(7) over descriptors of ours and of the kernel alike.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/poll/epoll_members.h"
#include "core/poll/event_collector.h"
#include "core/poll/held_signals.h"
#include "core/poll/kernel_members.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// An epoll set. Its descriptor is a kernel epoll descriptor, which holds the set's kernel descriptors just as the
/// caller added them. Members that are endpoints are either
///
/// - *hot*: in a list whose members wait() asks one by one, about 20 ns each. Recently active members are here; or
/// - *cold*: armed (Endpoint::arm()). A second epoll descriptor holds their doorbells, by which the kernel reports
///   them. They cost nothing, however many. Where many members have one peer process, they are also listed
///   (ready_lists.h): the peer then sets a bit instead of ringing, and rings only for a set whose threads sleep; or
/// - disabled (EPOLLONESHOT has fired), or parked (EpollMember::is_parked).
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
  /// Makes a set that the application does not know: it is in no table, and has endpoints as its members only. Errors:
  /// as create().
  static Result<Ref> create_unnamed();
  /// Makes the kernel's epoll set `epoll_fd` one of ours, with the members it has, so that it can hold endpoints.
  /// Threads that sleep in epoll_wait(2) on it are woken; see KernelMembers::forget_wake_up(). Errors: EBADF, EINVAL no
  /// epoll set, EMFILE, ENOMEM. Harmless when it is adopted already.
  /// @param copies     other descriptors of that set (dup(2)), which become ours with it
  /// @param is_shared  other processes may wait on it: it gets no member that would wake them, and threads of this
  ///                   process that sleep on it already are not woken
  static Status adopt(int epoll_fd, std::span<const int> copies = {}, bool is_shared = false);
  ~EpollSet() override;

  /// epoll_ctl(2), `event` not null unless `op` is EPOLL_CTL_DEL. Errors: EBADF, EEXIST, EINVAL, ELOOP, ENOENT, ENOMEM,
  /// ENOSPC, EPERM.
  Status control(int op, int fd, const epoll_event* event);
  /// The same for an endpoint, under a number that it need not have any more.
  Status control_member(int op, int fd, Endpoint& endpoint, const epoll_event* event) {
    return control_endpoint(op, fd, Ref::share(endpoint), event);
  }
  /// The member under this number has become the kernel's, and its events are not wanted any more.
  void forget_left(int fd) noexcept { static_cast<void>(kernel_.control(EPOLL_CTL_DEL, fd, nullptr)); }
  /// Looks as wait() without time does, for calls that are made again and again: the doorbells of cold members are
  /// looked at in some of them while there are hot members. No cancellation point.
  Result<int> look_once(std::span<epoll_event> events);
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
  void member_left_to_kernel(Endpoint& endpoint, int fd) noexcept override;

 private:
  friend class EpollMember;
  class CountedSleeper;
  using Departed = EpollMembers::Departed;
  using After = EventCollector::After;

  EpollSet(UniqueFd kernel, Doorbells doorbells);
  /// Makes a set around the epoll file of `epoll_fd`.
  static Result<Ref> wrap(int epoll_fd);

  // epoll_set.cc. The first four take the lock.
  Status control_endpoint(int op, int fd, Ref endpoint, const epoll_event* event);
  Status check_nesting(EpollSet& inner);
  bool reaches(const EpollSet& other, int levels);
  Status add(int fd, Ref endpoint, const epoll_event& event);
  /// Tells the threads that wait for the set, and its watchers, to look.
  void tell_waiters();
  /// Wakes the threads that sleep in wait().
  void ring();

  // epoll_wait.cc
  /// Where a look looks besides the hot members.
  enum class Beside { nothing, doorbells, turns };
  Result<int> look(std::span<epoll_event> events, Beside beside, const sigset_t* mask);
  void follow_users();
  Result<int> wait_awake(std::span<epoll_event> events, Nanos timeout, const sigset_t* mask);
  void ask_hot_for_ends();
  Result<int> spin(std::span<epoll_event> events, Nanos deadline, HeldSignals& signals);
  Result<int> sleep(std::span<epoll_event> events, Nanos deadline, const sigset_t* mask);
  Result<int> sleep_in_turn(std::span<pollfd> waited, Nanos deadline, const sigset_t* mask);
  Result<int> arm_and_sleep(std::span<pollfd> waited, std::span<epoll_event> events, Nanos deadline,
                            const sigset_t* mask);
  void leave_hot_members();
  void leave_listed_members();
  void stay_awake();

  KernelMembers kernel_;
  std::atomic<bool> was_ready_{false};
  std::atomic<bool> must_follow_{false};  ///< there are members with EpollMember::is_used_elsewhere
  std::atomic<bool> last_sleep_timed_out_{false};
  std::atomic<unsigned> looks_{0};  ///< calls of look_once()
  std::atomic<int> sleepers_{0};
  Mutex lock_;
  EpollMembers members_;
  EventCollector collector_;
  std::atomic<int> counter_slot_;
  std::atomic<bool> has_counters_{false};  ///< or there are none left
};

/// The calls on descriptor numbers. A set that was not adopted is the kernel's, and adding an endpoint to it fails with
/// EINVAL.
Status epoll_control(int epoll_fd, int op, int fd, const epoll_event* event);
/// Errors: those of EpollSet::wait(); EBADF, EINVAL `epoll_fd` is no epoll set, or `max_events` is not positive.
Result<int> epoll_wait_for(int epoll_fd, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask);

}  // namespace ringsock::runtime
