#include "core/poll/event_collector.h"

#include <algorithm>
#include <array>

#include "core/base/clock.h"
#include "core/base/hot_lines.h"
#include "core/poll/thread_waits.h"
#include "core/runtime/listable.h"

namespace ringsock::runtime {

namespace {

/// A listed member that is reported that often while few are hot is better asked than listed: its peer need not set
/// bits.
constexpr unsigned kReportsOfABusyOne = 64;

/// The age of events that precede all known ones, and of events with unknown time.
constexpr std::uint32_t kUnknownAge = ~0U;

/// In units of order_stamp(), about 0.4 us: within this time after its stamp was taken a peer's message is visible
/// here.
constexpr std::uint32_t kShownWithin = 32;

/// What so many connections need stays in the caches of a CPU: some 6 KiB each, with the application's part.
constexpr std::size_t kInCaches = 128;

/// A scan of more members is not repeated for events that came meanwhile: finding their order would cost more than half
/// of the scan.
constexpr std::size_t kMostAskedAgain = 16;

/// Returns 0 for a stamp in the future: ticks of different CPUs differ a little, and peers may send any value.
std::uint32_t age_of(std::uint32_t stamp, std::uint32_t now) {
  const std::uint32_t age = now - stamp;
  return static_cast<std::int32_t>(age) < 0 ? 0 : age;
}

void unlist_if_busy_alone(const HotMembers& hot, EpollMember& member) {
  if (hot.count() > HotMembers::kFew) {
    member.hot.reports = 0;
  } else if (++member.hot.reports == kReportsOfABusyOne && member.is_listed()) {
    if (Listable* const endpoint = member.endpoint().listable()) endpoint->unlist();
  }
}

/// Reports what the member's reportable() has found.
void report(HotMembers& hot, EpollMember& member, epoll_event& event) {
  event.events = member.found();
  event.data = member.event().data;
  member.reported();
  hot.keep_for_idle_rounds(member);
  if (!member.is_enabled()) return hot.leave(member);
  unlist_if_busy_alone(hot, member);
  member.hot.was_told_all = hot.count() > HotMembers::kFew && member.is_listed() && member.tells_all_at_once();
}

/// Asks a member. Returns whether it is ready.
bool is_ready(EpollMember& member) {
  return (!std::exchange(member.hot.was_told_all, false) || !member.has_nothing_left()) && member.reportable() != 0;
}

void get_cold_if_possible(EpollMembers& members, EpollMember& member, EventCollector::After after) {
  if ((after == EventCollector::After::get_cold && member.armed.is_armed) ||
      (members.hot.count() > HotMembers::kFew && member.is_listed()) ||
      // Its descriptors report events; registering them also reports present events.
      (member.endpoint().asks_kernel() && members.arm(member))) {
    members.hot.cool(member);
  }
}

/// Calls ask(EpollMember&) for the first `count` hot members, until it returns false. Loads a member, and then its
/// HotLines, while it asks those before.
template <class Ask>
void for_first_loaded(HotMembers& hot, std::size_t count, Ask ask) {
  constexpr std::size_t kAhead = 4;
  std::array<EpollMember*, 2 * kAhead> coming{};
  std::size_t seen = 0, asked = 0;
  const auto load_lines = [&](std::size_t number) {
    const EpollMember& member = *coming[number % coming.size()];
    if (!member.hot.was_told_all) member.listed.lines.load();
  };
  bool goes_on = true;
  hot.for_first(count, [&](EpollMember& member) {
    if (seen >= coming.size()) goes_on = ask(*coming[asked++ % coming.size()]);
    HotLines::load(&member, sizeof member);
    coming[seen++ % coming.size()] = &member;
    if (seen > kAhead) load_lines(seen - kAhead - 1);
    return goes_on;
  });
  for (std::size_t loaded = seen - std::min(seen, kAhead); goes_on && asked < seen;) {
    if (loaded < seen) load_lines(loaded++);
    goes_on = ask(*coming[asked++ % coming.size()]);
  }
}

}  // namespace

void EventCollector::reserve_for(std::size_t members) {
  if (members <= found_.capacity() && members <= asked_.capacity() && members <= seen_.capacity()) return;
  found_.reserve(2 * members);
  asked_.reserve(2 * members);
  seen_.reserve(2 * members);
}

std::size_t EventCollector::collect(EpollMembers& members, std::span<epoll_event> events, After after) {
  seen_.clear();
  members.heat_all_due();
  events = events.first(std::min(events.size(), kMostReported));
  const std::size_t unasked = members.hot.count() - members.hot.waiting();
  std::size_t count = members.hot.waiting() > 0 ? report_waiting(members, events) : 0;
  if (unasked == 1 && count < events.size()) {
    count += ask_only_one(members, events[count], after);
  } else if (unasked > 1 && count < events.size()) {
    scan(members, unasked, after);
    put_found_in_order(members.hot);
    count += report_found(members.hot, events.subspan(count));
  }
  thread_waits.tally.from_endpoints = static_cast<int>(count);
  return count;
}

/// Reports the members for which there was no room before.
std::size_t EventCollector::report_waiting(EpollMembers& members, std::span<epoll_event> events) {
  std::size_t count = 0;
  while (members.hot.waiting() > 0 && count < events.size()) {
    EpollMember& member = members.hot.take_waiting();
    if (member.reportable() != 0) report(members.hot, member, events[count++]);
  }
  return count;
}

/// Does the work of the three functions below for a single member, which needs no order.
std::size_t EventCollector::ask_only_one(EpollMembers& members, epoll_event& event, After after) {
  EpollMember& member = members.hot.first();
  if (member.reportable() == 0) {
    get_cold_if_possible(members, member, after);
    return 0;
  }
  report(members.hot, member, event);
  return 1;
}

/// Notes whether the member is ready. Returns whether to go on.
bool EventCollector::ask(EpollMember& member) {
  seen_.push_back(&member);
  if (is_ready(member)) {
    // Asked for now, while the endpoint is in the caches.
    found_.push_back({&member, member.has_news() ? member.endpoint().arrival_stamp() : 0, 0, found_.size()});
  } else {
    asked_.push_back(&member);
  }
  return found_.size() < kMostReported;
}

/// Asks the first `count` hot members, until enough are ready.
void EventCollector::scan(EpollMembers& members, std::size_t count, After after) {
  found_.clear();
  asked_.clear();
  scan_began_ = order_stamp();
  if (count <= HotMembers::kFew || members.table.size() <= kInCaches) {
    members.hot.for_first(count, [this](EpollMember& member) { return ask(member); });
  } else {
    for_first_loaded(members.hot, count, [this](EpollMember& member) { return ask(member); });
  }
  for (EpollMember* const member : asked_) get_cold_if_possible(members, *member, after);
}

/// Sorts by the times at which peers sent. Members without news since their last report come first. Members with
/// unknown times stay behind those that the scan found before them.
void EventCollector::put_found_in_order(HotMembers& hot) {
  if (scan_began_ == 0 || found_.empty() || (found_.size() == 1 && asked_.empty())) return;
  const std::uint32_t now = order_stamp();
  std::uint32_t previous = kUnknownAge;
  for (Found& found : found_) {
    found.age = found.stamp != 0 ? age_of(found.stamp, now) : found.member->has_news() ? previous : kUnknownAge;
    previous = found.age;
  }
  if (!asked_.empty() && asked_.size() <= kMostAskedAgain) find_overlooked(hot, now);
  const auto is_older = [](const Found& a, const Found& b) {
    return a.age != b.age ? a.age > b.age : a.place < b.place;
  };
  if (!std::is_sorted(found_.begin(), found_.end(), is_older)) std::sort(found_.begin(), found_.end(), is_older);
}

/// Asks again members that were not ready in the scan: some may have become ready before the youngest member that was
/// found. A thread that sees the youngest event also sees all earlier ones.
void EventCollector::find_overlooked(HotMembers& hot, std::uint32_t now) {
  std::uint32_t youngest = kUnknownAge;
  for (const Found& found : found_) youngest = std::min(youngest, found.age);
  if (youngest > now - scan_began_ + kShownWithin) return;
  for (EpollMember* const member : asked_) {
    if (member->reportable() == 0) continue;
    hot.heat(*member, 0);  // it may be cold by now, and what its doorbell would have told of is taken
    const std::uint32_t stamp = member->endpoint().arrival_stamp();
    if (stamp == 0 || age_of(stamp, now) <= youngest) continue;
    found_.push_back({member, stamp, age_of(stamp, now), found_.size()});
  }
}

/// Members without room stay in front of the hot members; those that are reported go behind all others, as in the
/// kernel.
std::size_t EventCollector::report_found(HotMembers& hot, std::span<epoll_event> events) {
  const std::size_t count = std::min(events.size(), found_.size());
  for (std::size_t i = found_.size(); i-- > count;) hot.put_first_to_wait(*found_[i].member);
  for (std::size_t i = 0; i < count; ++i) {
    EpollMember& member = *found_[i].member;
    hot.put_last(member);
    report(hot, member, events[i]);
  }
  return count;
}

}  // namespace ringsock::runtime
