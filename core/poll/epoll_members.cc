#include "core/poll/epoll_members.h"

#include <algorithm>
#include <array>
#include <climits>

#include "core/base/barrier.h"
#include "core/runtime/listable.h"

namespace ringsock::runtime {

// -- coming and leaving

Status EpollMembers::add(EpollSet& set, int fd, Ref endpoint, const epoll_event& event) {
  const Key key{endpoint.get(), fd};
  EpollMember* known = newest(key);
  const auto place = known == nullptr ? table.lower_bound(key) : table.end();
  if (place != table.end() && place->first == key) known = place->second.get();
  if (known != nullptr) {
    if (!known->is_parked) return Error{EEXIST, "epoll_ctl"};
    unpark(*known, event);
    return ok();
  }
  const auto number = static_cast<std::size_t>(fd);
  if (number >= by_number_.size()) by_number_.resize(std::max(number + 1, 2 * by_number_.size()));
  auto created = std::make_unique<EpollMember>(set, fd, std::move(endpoint));
  EpollMember& member = *created;
  member.set_event(event);
  const auto entered = table.emplace_hint(place, key, std::move(created));
  if (!member.endpoint().add_watch(member)) {
    // This is not the last reference: the closing thread holds one.
    table.erase(entered);
    return Error{EBADF, "epoll_ctl: closed"};
  }
  by_number_[number] = &member;
  count_again();
  hot.heat(member, HotMembers::kGraceRounds);
  ask_for_stamps(member);
  return ok();
}

/// Members under one number are of several endpoints when the number was closed and used again, while other numbers
/// kept its endpoint open.
EpollMember* EpollMembers::find_older(const Key& key) const {
  const auto found = table.find(key);
  return found != table.end() ? found->second.get() : nullptr;
}

/// Order does not matter in a set with one member.
void EpollMembers::ask_for_stamps(EpollMember& newest) {
  if (table.size() > 2) {
    static_cast<void>(newest.endpoint().arrival_stamp());
  } else if (table.size() == 2) {
    for (auto& [key, member] : table) static_cast<void>(member->endpoint().arrival_stamp());
  }
}

void EpollMembers::modify(EpollMember& member, const epoll_event& event) {
  member.set_event(event);
  if (!gets_cold_at_once(member)) hot.heat(member, HotMembers::kGraceRounds);
}

/// Asks a listed member of many that was just registered. A program registers a connection when it has just used it,
/// so that it is in the caches; by the next look it would have left them.
bool EpollMembers::gets_cold_at_once(EpollMember& member) {
  if (hot.count() <= HotMembers::kFew || !member.is_listed()) return false;
  member.hot.was_told_all = false;
  if (member.reportable() != 0 || !member.is_listed()) return false;
  hot.cool(member);
  return !member.is_hot();
}

bool EpollMembers::park(EpollMember& member) {
  if (member.endpoint().listable() == nullptr) return false;
  member.disable();
  hot.leave(member);
  member.is_parked.store(true);
  ++parked_count_;
  count_again();
  return true;
}

void EpollMembers::unpark(EpollMember& member, const epoll_event& event) {
  member.is_parked.store(false);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  --parked_count_;
  count_again();
  modify(member, event);
}

void EpollMembers::remove(Place place, Departed& departed) {
  EpollMember& member = *place->second;
  member.endpoint().remove_watch(member);
  // It may be in the changed list, and will not be pushed there any more.
  heat_changed();
  hot.leave(member);
  lists.leave(member.listed);
  if (member.is_parked) --parked_count_;
  EpollMember*& newest = by_number_[static_cast<std::size_t>(member.fd())];
  if (newest == &member) newest = nullptr;
  departed.insert(table.extract(place));
  turns.leave(member);
  leave_doorbells(member);
  count_again();
}

Status EpollMembers::renew() {
  Status made = doorbells.renew();
  changed.forget();
  lists.forget();
  turns.forget();
  for (auto& [key, member] : table) {
    member->turn.fds = {-1, -1, -1};
    member->turn.is_in.store(false);
    member->listed = {};
    member->changed.is_in.store(false);
    member->armed.doorbells = {};
    if (member->is_enabled()) hot.heat(*member, HotMembers::kGraceRounds);
    member->armed.is_armed = false;
  }
  return made;
}

// -- hot and cold

void EpollMembers::heat_changed() {
  changed.take([this](EpollMember& member) {
    if (member.is_enabled()) hot.heat(member, HotMembers::kGraceRounds);
  });
}

void EpollMembers::heat_all_due() {
  heat_changed();
  lists.take([this](EpollMember& member) {
    if (member.is_enabled()) hot.heat(member, 0);
  });
  hot.heat_due();
}

void EpollMembers::take_doorbells() {
  doorbells.take([this](Endpoint& owner) {
    owner.woken();
    owner.notify_watchers();
    if (parked_count_ > 0) leave_doorbells_if_parked(owner);
  });
}

bool EpollMembers::heat_in_turn(std::span<const epoll_event> events) {
  bool are_any = false;
  for (const epoll_event& event : events) {
    EpollMember* const member = turns.member_of(event);
    if (member == nullptr || !member->is_enabled()) continue;
    member->note_edge();
    hot.heat(*member, 0);
    are_any = true;
  }
  return are_any;
}

void EpollMembers::take_turns() {
  if (turns.count() == 0) return;
  TurnDoorbells::Events events;
  const int count = ::epoll_wait(turns.file(), events.data(), static_cast<int>(events.size()), 0);
  if (count > 0) heat_in_turn(std::span(events).first(static_cast<std::size_t>(count)));
}

void EpollMembers::arm_hot() {
  const AsymmetricBarrier::Batch one_barrier;
  hot.for_each([this](EpollMember& member) { member.armed.is_armed = member.is_listed() || arm(member); });
  lists.will_sleep();
}

void EpollMembers::arm_doorbells() {
  const AsymmetricBarrier::Batch one_barrier;
  hot.for_each([this](EpollMember& member) {
    if (!member.is_listed()) arm(member);
  });
  lists.will_sleep();
}

bool EpollMembers::forget_arming() {
  bool all_armed = true;
  hot.for_each([&all_armed](EpollMember& member) {
    all_armed = all_armed && (member.armed.is_deaf || member.armed.is_armed);
    member.armed.is_armed = false;
  });
  return all_armed;
}

void EpollMembers::cool_down(std::span<EpollMember* const> seen) {
  hot.end_round();
  // A share of all members, so that ten thousand new ones are neither armed at once nor asked for long.
  std::size_t budget = std::max<std::size_t>(4, hot.count() / 16);
  for (EpollMember* const member : seen) {
    if (!member->is_hot() || !is_to_get_cold(*member)) continue;
    make_cold(*member);
    if (--budget == 0) return;
  }
}

/// Makes a hot member cold if it can be listed or armed, and the last look finds nothing.
void EpollMembers::make_cold(EpollMember& member) {
  member.hot.was_told_all = false;  // what came before it is listed is in no map
  member.armed.is_armed = arm_or_list(member);
  // The last look may change its doorbells.
  if (member.armed.is_armed && member.reportable() == 0 && member.armed.is_armed) {
    hot.cool(member);
  } else {
    hot.keep_for_idle_rounds(member);
  }
}

/// Returns whether the hot member was idle for long, or would cost less if it were listed.
bool EpollMembers::is_to_get_cold(EpollMember& member) {
  return hot.was_idle_for_long(member) || (hot.count() > HotMembers::kFew && should_list(member));
}

/// Returns whether a member that is not listed would be.
bool EpollMembers::should_list(EpollMember& member) {
  if (table.size() < ReadyLists::kFewMembers || member.is_listed()) return false;
  Listable* const endpoint = member.endpoint().listable();
  return endpoint != nullptr && lists.wants(member.listed, *endpoint);
}

/// Makes the member ready to get cold: it is listed, or armed and, where there is a map, listed.
bool EpollMembers::arm_or_list(EpollMember& member) {
  if (member.is_listed()) return true;
  if (!arm(member)) return false;
  if (Listable* const endpoint = member.endpoint().listable()) lists.list(member, member.listed, *endpoint);
  return true;
}

// -- doorbells

bool EpollMembers::arm(EpollMember& member) {
  const WaitFds before = member.armed.doorbells;
  WaitFds& now = member.armed.doorbells;
  now = member.endpoint().arm();
  if (enter_turns(member, now)) now = {};
  for (const int fd : before.fd) {
    if (fd >= 0 && fd != now.fd[0] && fd != now.fd[1]) leave_doorbell(fd, member.endpoint());
  }
  bool all = true;
  for (int& fd : now.fd) {
    const bool is_new = fd != before.fd[0] && fd != before.fd[1];
    if (fd >= 0 && !doorbells.add(fd, member.endpoint(), is_new)) all = false;
  }
  member.armed.is_deaf = !all;
  return all;
}

/// Returns whether the member wakes in turn. Otherwise it is woken beside all others that wait for its endpoint.
bool EpollMembers::enter_turns(EpollMember& member, const WaitFds& fds) {
  if ((member.event().events & EPOLLEXCLUSIVE) == 0) return false;
  if (fds.shared[1] >= 0) {
    return turns.enter(member, fds, member.endpoint().taken_in_turns(), {doorbells.file(), kernel_file_});
  }
  turns.leave(member);
  return false;
}

void EpollMembers::leave_doorbell(int fd, Endpoint& endpoint) {
  if (!doorbells.leave(fd, endpoint)) return;
  // Another member with this doorbell checks whether it rang meanwhile.
  EpollMember* const other = other_with(fd, endpoint);
  if (other == nullptr) return doorbells.remove(fd);
  doorbells.ring_for(fd, other->endpoint());
  if (other->is_enabled()) hot.heat(*other, HotMembers::kGraceRounds);
}

/// Returns a member of another endpoint with that doorbell, or null.
EpollMember* EpollMembers::other_with(int doorbell, Endpoint& endpoint) {
  const auto has_it = [&](const auto& entry) {
    const std::array<int, 2>& fds = entry.second->armed.doorbells.fd;
    return &entry.second->endpoint() != &endpoint && (fds[0] == doorbell || fds[1] == doorbell);
  };
  const auto found = std::find_if(table.begin(), table.end(), has_it);
  return found != table.end() ? found->second.get() : nullptr;
}

/// Forgets the doorbells of a member that has just left, unless the endpoint is still a member under another
/// descriptor.
void EpollMembers::leave_doorbells(EpollMember& member) {
  Endpoint& endpoint = member.endpoint();
  const auto other = table.lower_bound({&endpoint, INT_MIN});
  if (other != table.end() && other->first.first == &endpoint) return;
  for (const int fd : member.armed.doorbells.fd) {
    if (fd >= 0) leave_doorbell(fd, endpoint);
  }
}

/// Called when a doorbell has rung: a removed member that has news was not added again at once, so it is another set's,
/// or nobody's, and its doorbell must not wake this set's threads any more.
void EpollMembers::leave_doorbells_if_parked(Endpoint& endpoint) {
  const auto first = table.lower_bound({&endpoint, INT_MIN});
  const auto end = table.upper_bound({&endpoint, INT_MAX});
  if (!std::all_of(first, end, [](const auto& entry) { return entry.second->is_parked.load(); })) return;
  for (auto place = first; place != end; ++place) {
    for (const int fd : std::exchange(place->second->armed.doorbells, {}).fd) {
      if (fd >= 0) leave_doorbell(fd, endpoint);
    }
  }
}

}  // namespace ringsock::runtime
