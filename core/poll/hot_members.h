// The hot members of an epoll set, and the times of the cold ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/base/intrusive_list.h"
#include "core/poll/epoll_member.h"

namespace ringsock::runtime {

/// The hot members in the order in which they are asked. Those that wait for room to be reported are the first. A cold
/// member is only known here while it has a deadline. Guarded by the set's lock, but for count().
class HotMembers {
 public:
  /// A member that just got hot gets cold after this many idle rounds; once it has reported, kIdleRounds apply. A
  /// connection that was just accepted usually has data soon.
  static constexpr std::uint64_t kGraceRounds = 8;
  /// A hot member costs 20-30 ns a round, making it cold and hot again about 3 us: after this many rounds being hot has
  /// cost as much as the move.
  static constexpr std::uint64_t kIdleRounds = 128;
  /// Up to this number of hot members costs less to ask in each round than to list.
  static constexpr std::size_t kFew = 16;

  [[nodiscard]] std::size_t count() const { return count_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t waiting() const { return waiting_count_; }
  [[nodiscard]] EpollMember& first() { return *members_.front(); }
  template <class Visit>
  void for_each(Visit visit) {
    members_.for_each(visit);
  }
  template <class Visit>
  void for_first(std::size_t members, Visit visit) {
    members_.for_first(members, visit);
  }

  /// Makes a member hot for at least so many rounds.
  void heat(EpollMember& member, std::uint64_t rounds);
  /// Makes a hot member cold. It stays hot where there is no memory for its deadline.
  void cool(EpollMember& member);
  /// Forgets a member that is disabled or leaves.
  void leave(EpollMember& member);
  /// Makes the cold members hot whose deadlines have come.
  void heat_due() {
    if (!due_.empty()) heat_due_now();
  }
  /// Returns the first deadline of a cold member, or Nanos::max().
  [[nodiscard]] Nanos next_due() const { return due_.empty() ? Nanos::max() : due_.begin()->first; }

  /// Called after each round that found something.
  void end_round() { ++round_; }
  void keep_for_idle_rounds(EpollMember& member) const { member.hot.idle_until = round_ + kIdleRounds; }
  [[nodiscard]] bool was_idle_for_long(const EpollMember& member) const { return member.hot.idle_until <= round_; }

  void put_last(EpollMember& member) {
    member.ListNode<HotMembers>::unlink();
    members_.push_back(member);
  }
  /// Puts a member that is ready, and for which there is no room, before all others.
  void put_first_to_wait(EpollMember& member) {
    member.ListNode<HotMembers>::unlink();
    members_.push_front(member);
    member.hot.is_waiting = true;
    ++waiting_count_;
  }
  /// Returns the first one that waits, which goes behind all others. waiting() must not be 0.
  EpollMember& take_waiting() {
    EpollMember& member = first();
    member.hot.is_waiting = false;
    --waiting_count_;
    put_last(member);
    return member;
  }

 private:
  void heat_due_now();

  IntrusiveList<EpollMember, HotMembers> members_;
  std::atomic<std::size_t> count_{0};
  std::size_t waiting_count_ = 0;                 ///< number of members with HotMember::is_waiting
  std::uint64_t round_ = 0;                       ///< calls of epoll_wait(2) that reported endpoints
  std::set<std::pair<Nanos, EpollMember*>> due_;  ///< cold members with a deadline
};

}  // namespace ringsock::runtime
