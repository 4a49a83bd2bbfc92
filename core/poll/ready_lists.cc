#include "core/poll/ready_lists.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/poll/epoll_member.h"
#include "core/runtime/listable.h"

namespace ringsock::runtime {

void ReadyLists::enter(ListedMember& member, std::uint64_t peers) {
  ReadyGroup& group = groups_[peers];
  group.peers = peers;
  ++group.members;
  member.group = &group;
}

bool ReadyLists::wants(ListedMember& member, Listable& endpoint) try {
  if (member.group == nullptr) {
    const std::uint64_t peers = endpoint.peer_group();
    if (peers == 0) return false;
    enter(member, peers);
  }
  const ReadyGroup& group = *member.group;
  if (group.map) return true;
  return group.members >= kFewMembers && !group.has_no_map && mapped_.size() < kMostMaps;
} catch (const std::bad_alloc&) {
  return false;
}

bool ReadyLists::make_map(ReadyGroup& group, Listable& endpoint) {
  if (group.map) return true;
  mapped_.reserve(kMostMaps);
  auto made = endpoint.make_ready_map();
  group.has_no_map = !made;
  if (!made) return false;
  group.map = *std::move(made);
  mapped_.push_back(&group);
  has_maps_.store(true, std::memory_order_relaxed);
  return true;
}

/// Gives the member a place, which it keeps until it leaves. Returns false when there is none. leave() takes no memory.
bool ReadyLists::take_place(ReadyGroup& group, EpollMember& member, ListedMember& part) {
  if (part.place != ListedMember::kNowhere) return true;
  if (!group.free_ones.empty()) {
    part.place = group.free_ones.back();
    group.free_ones.pop_back();
    group.places[part.place] = &member;
    return true;
  }
  if (group.places.size() == ReadyBits::kPlaces) return false;
  if (group.free_ones.capacity() <= group.places.size()) group.free_ones.reserve(2 * group.places.size() + 1);
  group.places.push_back(&member);
  part.place = places_of(group) - 1;
  return true;
}

namespace {

/// Each call uses the start of an endpoint, what the implementation adds to it, and the start of its way.
HotLines lines_of(Endpoint& endpoint, const Listable& listable) {
  constexpr std::ptrdiff_t kOfEndpoint = 100, kOfImplementation = 96, kOfWay = 500;
  HotLines lines;
  const auto add_start = [&lines](const void* object, std::ptrdiff_t bytes) {
    lines.add(object, static_cast<const std::byte*>(object) + bytes);
  };
  add_start(&endpoint, kOfEndpoint);
  add_start(&endpoint + 1, kOfImplementation);
  if (const void* const way = endpoint.way()) add_start(way, kOfWay);
  listable.add_hot_lines(lines);
  return lines;
}

}  // namespace

void ReadyLists::list(EpollMember& member, ListedMember& part, Listable& endpoint) try {
  if (!wants(part, endpoint) || !make_map(*part.group, endpoint)) return;
  if (!take_place(*part.group, member, part)) return;
  part.listing = endpoint.list_at(part.group->map, part.place);
  part.lines = lines_of(member.endpoint(), endpoint);
} catch (const std::bad_alloc&) {  // it goes on ringing
}

void ReadyLists::leave(ListedMember& member) {
  if (member.group == nullptr) return;
  ReadyGroup& group = *member.group;
  if (member.place != ListedMember::kNowhere) {
    group.places[member.place] = nullptr;
    group.free_ones.push_back(member.place);
  }
  member = {};
  if (--group.members > 0) return;
  std::erase(mapped_, &group);
  has_maps_.store(!mapped_.empty(), std::memory_order_relaxed);
  groups_.erase(group.peers);
}

void ReadyLists::forget() {
  mapped_.clear();
  groups_.clear();
  has_maps_.store(false, std::memory_order_relaxed);
  peers_ring_.store(false, std::memory_order_relaxed);
}

bool ReadyLists::any() const {
  return std::ranges::any_of(mapped_,
                             [](const ReadyGroup* group) { return group->map->bits().any(places_of(*group)); });
}

void ReadyLists::will_sleep() {
  for (const ReadyGroup* const group : mapped_) group->map->bits().will_sleep();
  peers_ring_.store(!mapped_.empty(), std::memory_order_relaxed);
}

void ReadyLists::is_awake() {
  for (const ReadyGroup* const group : mapped_) group->map->bits().is_awake();
  peers_ring_.store(false, std::memory_order_relaxed);
}

}  // namespace ringsock::runtime
