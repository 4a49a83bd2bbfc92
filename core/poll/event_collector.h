// One look at the hot members of an epoll set, and the order in which they are reported.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/poll/epoll_members.h"

namespace ringsock::runtime {

/// Asks the hot members, and reports those that are ready in the order of their events. Guarded by the set's lock.
class EventCollector {
 public:
  enum class After { stay_hot, get_cold };

  /// A look reports so many members at most. The next look goes on with the others. What a member, its connection and
  /// the application's data of it need in the caches is then still there when the application reads and answers: with a
  /// thousand ready members it would have to be loaded two or three times. Peers get the first answers sooner, too.
  static constexpr std::size_t kMostReported = 64;

  /// Reserves the memory that a look at so many members may need. Errors: std::bad_alloc.
  void reserve_for(std::size_t members);
  /// Reports hot members until `events` is full. Returns how many.
  /// @param after  get_cold: members that are armed and not ready get cold
  std::size_t collect(EpollMembers& members, std::span<epoll_event> events, After after);
  /// Returns the members that the latest look has asked together with others, while the set's lock is held.
  [[nodiscard]] std::span<EpollMember* const> seen() const { return seen_; }

 private:
  /// A member that a scan found ready.
  struct Found {
    EpollMember* member;
    std::uint32_t stamp;    ///< of the event, 0 if it is not known
    std::uint32_t age = 0;  ///< in units of order_stamp(), once put_found_in_order() has found it
    std::size_t place;      ///< position in the scan
  };

  static std::size_t report_waiting(EpollMembers& members, std::span<epoll_event> events);
  static std::size_t ask_only_one(EpollMembers& members, epoll_event& event, After after);
  void scan(EpollMembers& members, std::size_t count, After after);
  bool ask(EpollMember& member);
  void put_found_in_order(HotMembers& hot);
  void find_overlooked(HotMembers& hot, std::uint32_t now);
  std::size_t report_found(HotMembers& hot, std::span<epoll_event> events);

  std::vector<Found> found_;         ///< by the latest scan
  std::vector<EpollMember*> seen_;   ///< members that it asked
  std::vector<EpollMember*> asked_;  ///< those that were not ready
  std::uint32_t scan_began_ = 0;     ///< order_stamp()
};

}  // namespace ringsock::runtime
