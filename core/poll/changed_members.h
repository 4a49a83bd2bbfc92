// The members of an epoll set whose endpoints have told of a change.
#pragma once

#include <atomic>
#include <utility>

#include "core/poll/epoll_member.h"

namespace ringsock::runtime {

/// A stack onto which any thread pushes members, and from which the holder of the set's lock takes all at once.
class ChangedMembers {
 public:
  /// Harmless when it is in already. Threads: any.
  void push(EpollMember& member) {
    if (member.changed.is_in.exchange(true)) return;
    member.changed.next = newest_.load(std::memory_order_relaxed);
    while (!newest_.compare_exchange_weak(member.changed.next, &member)) {
    }
  }
  [[nodiscard]] bool empty() const { return newest_.load() == nullptr; }
  /// Calls visit(EpollMember&) for each member, in the order of their changes. The set's lock must be held.
  template <class Visit>
  void take(Visit visit) {
    EpollMember* member = nullptr;
    for (EpollMember* newest = newest_.exchange(nullptr); newest != nullptr;) {
      EpollMember* const older = std::exchange(newest->changed.next, member);
      member = std::exchange(newest, older);
    }
    while (member) {
      EpollMember* const next = member->changed.next;
      member->changed.is_in.store(false);
      visit(*member);
      member = next;
    }
  }
  /// Forgets all, in a forked child. ChangedMember::is_in of all members must become false.
  void forget() { newest_.store(nullptr); }

 private:
  std::atomic<EpollMember*> newest_{nullptr};
};

}  // namespace ringsock::runtime
