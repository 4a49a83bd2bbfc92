#include "core/poll/hot_members.h"

#include <algorithm>
#include <new>

namespace ringsock::runtime {

void HotMembers::leave(EpollMember& member) {
  if (member.is_hot()) {
    member.ListNode<HotMembers>::unlink();
    --count_;
    if (std::exchange(member.hot.is_waiting, false)) --waiting_count_;
  }
  if (member.hot.deadline != Nanos::max()) due_.erase({member.hot.deadline, &member});
  member.hot.deadline = Nanos::max();
}

void HotMembers::heat(EpollMember& member, std::uint64_t rounds) {
  member.hot.idle_until = std::max(member.hot.idle_until, round_ + rounds);
  member.hot.was_told_all = false;
  if (member.is_hot()) return;
  leave(member);
  member.armed.is_armed = false;
  members_.push_back(member);
  ++count_;
}

void HotMembers::cool(EpollMember& member) try {
  const Nanos deadline = member.endpoint().deadline();
  if (deadline != Nanos::max()) due_.insert({deadline, &member});
  leave(member);
  member.hot.deadline = deadline;
} catch (const std::bad_alloc&) {
}

void HotMembers::heat_due_now() {
  const Nanos now = monotonic_now();
  while (!due_.empty() && due_.begin()->first <= now) heat(*due_.begin()->second, 0);
}

}  // namespace ringsock::runtime
