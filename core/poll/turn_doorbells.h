// The kernel descriptors by which members of an epoll set wake one of all the threads that wait for them.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

class EpollMember;

/// The part of a member that TurnDoorbells changes.
struct TurnMember {
  /// WaitFds::shared and WaitFds::own, as they are registered.
  std::array<int, 3> fds{-1, -1, -1};
  std::uint64_t serial = 0;        ///< Endpoint::taken_in_turns(): which object had them
  std::atomic<bool> is_in{false};  ///< written with the set's lock
};

/// An epoll file in which the threads of a set sleep that has members with EPOLLEXCLUSIVE. The kernel wakes one of the
/// sleepers of a descriptor only where all of them sleep in epoll_wait(2) on a file that has the descriptor itself as
/// an exclusive member: one that sleeps in poll(2), or on a set around that file, is woken beside the others. So this
/// file has the descriptors of these members, edge-triggered, and beside them the two files of all other members of the
/// set. Guarded by the set's lock, but for file() and count().
class TurnDoorbells {
 public:
  /// The file and the members of this object that a thread found in epoll_wait(2).
  using Events = std::array<epoll_event, 16>;

  /// Returns the file, -1 before the first member has entered. Threads: any.
  [[nodiscard]] int file() const { return number_.load(std::memory_order_acquire); }
  /// Returns the number of members. Threads: any.
  [[nodiscard]] std::size_t count() const { return count_.load(std::memory_order_relaxed); }

  /// Registers what wakes `member`, or registers it anew.
  /// @param others  the files of the other members
  /// @param serial  that of the endpoint now
  /// @return false when the kernel cannot: the member is not in then
  bool enter(EpollMember& member, const WaitFds& fds, std::uint64_t serial, std::array<int, 2> others);
  /// Harmless when it is not in.
  void leave(EpollMember& member);
  /// Returns the member of which an event tells, or null.
  [[nodiscard]] EpollMember* member_of(const epoll_event& event) const {
    const auto known = known_.find(event.data.fd);
    return known != known_.end() ? known->second : nullptr;
  }
  /// Forgets everything, in a forked child: TurnMember of all members must be forgotten, too.
  void forget();

 private:
  bool make(std::array<int, 2> others);
  bool add(int fd, std::uint32_t how, EpollMember& member);
  void remove(int fd, const EpollMember& member);

  UniqueFd file_;
  std::atomic<int> number_{-1};
  std::atomic<std::size_t> count_{0};
  bool cannot_be_made_ = false;
  std::unordered_map<int, EpollMember*> known_;
};

}  // namespace ringsock::runtime
