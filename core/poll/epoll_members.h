// The table of an epoll set, and the states of its members.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/poll/changed_members.h"
#include "core/poll/doorbells.h"
#include "core/poll/epoll_member.h"
#include "core/poll/hot_members.h"
#include "core/poll/ready_lists.h"
#include "core/poll/turn_doorbells.h"

namespace ringsock::runtime {

/// The members of a set that are endpoints. Each is hot, cold, disabled or parked (epoll_set.h); the functions here
/// move members between these states and keep the parts in step. Guarded by the set's lock, but for `changed` and
/// count().
class EpollMembers {
 public:
  /// As in the kernel: the same endpoint may be in under several descriptors.
  using Key = std::pair<Endpoint*, int>;
  using Table = std::map<Key, std::unique_ptr<EpollMember>>;
  /// Members that have left the set. They and their references are destroyed after the lock is released.
  using Departed = Table;
  using Place = Table::iterator;

  /// @param kernel_file  the epoll file with the members that are no endpoints
  EpollMembers(Doorbells made, int kernel_file) : doorbells(std::move(made)), kernel_file_(kernel_file) {}

  Doorbells doorbells;
  TurnDoorbells turns;
  Table table;  ///< changed only here
  /// Returns the member that is in under that key, also a parked one, or null.
  [[nodiscard]] EpollMember* find(const Key& key) const {
    if (static_cast<std::size_t>(key.second) >= by_number_.size()) return nullptr;
    EpollMember* const known = newest(key);
    return known != nullptr ? known : find_older(key);
  }
  ReadyLists lists;
  HotMembers hot;
  ChangedMembers changed;

  // -- coming and leaving
  /// Returns the number of members but those that are parked, also without the lock.
  [[nodiscard]] std::size_t count() const { return count_.load(std::memory_order_relaxed); }
  /// Enters a hot member, or unparks it. Errors: EEXIST; EBADF the endpoint was closed.
  Status add(EpollSet& set, int fd, Ref endpoint, const epoll_event& event);
  void modify(EpollMember& member, const epoll_event& event);
  /// Keeps a member that was removed for the case that it is added again. Only connections: other endpoints go on
  /// ringing. Returns whether it is kept.
  bool park(EpollMember& member);
  void remove(Place place, Departed& departed);
  /// Forgets, in a forked child, what only the parent's doorbells and maps are for. Errors: there are no descriptors
  /// for new doorbells, so that all members stay hot.
  Status renew();

  // -- hot and cold
  /// Makes the members hot whose endpoints have told of a change, whose peers have noted news, or whose deadlines have
  /// come.
  void heat_all_due();
  /// Consumes the doorbells that rang. Endpoint::notify_watchers() makes the members of their endpoints hot, and wakes
  /// other sleepers that may have been about to sleep on the same doorbell.
  void take_doorbells();
  /// Makes the members hot of which the events of TurnDoorbells tell. Returns whether there are any.
  bool heat_in_turn(std::span<const epoll_event> events);
  /// Takes the events that no thread has found in its sleep.
  void take_turns();
  /// Arms the member's endpoint and registers its doorbells with the kernel.
  /// @return false when the kernel cannot (ENOSPC, ENOMEM, ELOOP), or memory is missing: the member must stay hot.
  bool arm(EpollMember& member);
  /// Arms all hot members, and lets the peers of listed ones ring.
  void arm_hot();
  /// The same for sleeps on this set as an endpoint: what forget_arming() finds stays as it is.
  void arm_doorbells();
  /// Returns whether all hot members are still armed, but for those that cannot be, and lets the next sleep arm them
  /// anew.
  bool forget_arming();
  /// Lists or arms some of the members that a look has asked: those that have been idle for long, and those that would
  /// cost less if they were listed. Call it after a look that has found others busy.
  void cool_down(std::span<EpollMember* const> seen);

 private:
  /// Returns the newest member under the number if it is in under that key, or null.
  [[nodiscard]] EpollMember* newest(const Key& key) const {
    const auto number = static_cast<std::size_t>(key.second);
    EpollMember* const member = number < by_number_.size() ? by_number_[number] : nullptr;
    return member != nullptr && &member->endpoint() == key.first ? member : nullptr;
  }
  [[nodiscard]] EpollMember* find_older(const Key& key) const;
  bool gets_cold_at_once(EpollMember& member);
  void heat_changed();
  void unpark(EpollMember& member, const epoll_event& event);
  void count_again() { count_.store(table.size() - parked_count_, std::memory_order_relaxed); }
  void ask_for_stamps(EpollMember& newest);
  bool enter_turns(EpollMember& member, const WaitFds& fds);
  bool arm_or_list(EpollMember& member);
  [[nodiscard]] bool should_list(EpollMember& member);
  [[nodiscard]] bool is_to_get_cold(EpollMember& member);
  void make_cold(EpollMember& member);
  void leave_doorbell(int fd, Endpoint& endpoint);
  void leave_doorbells(EpollMember& member);
  void leave_doorbells_if_parked(Endpoint& endpoint);
  EpollMember* other_with(int doorbell, Endpoint& endpoint);

  const int kernel_file_;
  /// The newest member under each descriptor number: programs that change their registrations with each message need
  /// no search.
  std::vector<EpollMember*> by_number_;
  std::size_t parked_count_ = 0;
  std::atomic<std::size_t> count_{0};
};

}  // namespace ringsock::runtime
