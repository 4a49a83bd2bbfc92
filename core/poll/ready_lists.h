// The members of an epoll set whose peers note their news in maps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/hot_lines.h"
#include "core/base/ready_map.h"

namespace ringsock::runtime {

class EpollMember;
class Listable;

/// A group of members whose peers share a map, because they are of one process.
struct ReadyGroup {
  std::uint64_t peers = 0;  ///< Listable::peer_group()
  std::size_t members = 0;
  std::shared_ptr<ReadyMap> map;         ///< null until there are enough members
  bool has_no_map = false;               ///< it could not be made
  std::vector<EpollMember*> places;      ///< by place in the map; null: free
  std::vector<std::uint32_t> free_ones;  ///< below places.size()
};

/// The part of a member that ReadyLists changes.
struct ListedMember {
  static constexpr std::uint32_t kNowhere = ~0U;
  ReadyGroup* group = nullptr;
  std::uint32_t place = kNowhere;
  Listing listing;
  HotLines lines;  ///< of the endpoint, while it is listed
};

/// The maps of one epoll set: one for each process that has the other ends of many members. Guarded by the set's lock,
/// but for has_maps() and peers_ring().
class ReadyLists {
 public:
  /// A process with fewer members of the set gets no map: asking these members one by one, or arming each, costs less.
  static constexpr std::size_t kFewMembers = 32;
  static constexpr std::size_t kMostMaps = 16;

  /// Returns whether it would list the member now.
  bool wants(ListedMember& member, Listable& endpoint);
  /// Lists a member that was armed, if there is a map for it.
  void list(EpollMember& member, ListedMember& part, Listable& endpoint);
  /// Forgets a member that is about to be destroyed.
  void leave(ListedMember& member);
  /// Forgets all maps, in a forked child. The members must be new ListedMembers afterwards.
  void forget();

  /// Calls visit(EpollMember&) for each member with news since the last call.
  template <class Visit>
  void take(Visit visit) {
    for (const ReadyGroup* const group : mapped_) {
      group->map->bits().take(places_of(*group), [&](std::uint32_t place) {
        if (place + kAhead < group->places.size()) HotLines::load(group->places[place + kAhead], kHeatedBytes);
        // A peer may set any place.
        if (place < group->places.size() && group->places[place] != nullptr) visit(*group->places[place]);
      });
    }
  }
  [[nodiscard]] bool has_maps() const { return has_maps_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool any() const;
  /// ReadyBits::will_sleep() on all maps: peers ring until is_awake().
  void will_sleep();
  void is_awake();
  [[nodiscard]] bool peers_ring() const { return peers_ring_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kAhead = 4;          ///< neighbours often have news together
  static constexpr std::size_t kHeatedBytes = 192;  ///< of a member, that change when it gets hot
  static std::uint32_t places_of(const ReadyGroup& group) { return static_cast<std::uint32_t>(group.places.size()); }
  void enter(ListedMember& member, std::uint64_t peers);
  static bool take_place(ReadyGroup& group, EpollMember& member, ListedMember& part);
  bool make_map(ReadyGroup& group, Listable& endpoint);

  std::unordered_map<std::uint64_t, ReadyGroup> groups_;
  std::vector<ReadyGroup*> mapped_;  ///< those with a map
  std::atomic<bool> has_maps_{false};
  std::atomic<bool> peers_ring_{false};  ///< peers have been told that threads sleep
};

}  // namespace ringsock::runtime
