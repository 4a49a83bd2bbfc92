// One registration in an epoll set.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/base/clock.h"
#include "core/base/intrusive_list.h"
#include "core/poll/ready_lists.h"
#include "core/poll/turn_doorbells.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

class EpollMember;
class EpollSet;
class HotMembers;

/// The part of a member that HotMembers changes.
struct HotMember {
  std::uint64_t idle_until = 0;   ///< the round in which it gets cold if it does nothing
  unsigned reports = 0;           ///< since more members than HotMembers::kFew were hot
  bool is_waiting = false;        ///< while hot: it was found ready, but there was no room to report it
  bool was_told_all = false;      ///< while hot: it was reported, is listed since, and nobody has told of news of it
  Nanos deadline = Nanos::max();  ///< while cold: when to look without a doorbell
};

/// The part of a member that EpollMembers changes when it arms the member.
struct ArmedMember {
  bool is_armed = false;  ///< while hot: its doorbells are known to be armed, and still those of Endpoint::arm()
  bool is_deaf = false;   ///< the kernel refused its doorbells: it stays hot
  WaitFds doorbells;      ///< the last result of Endpoint::arm()
};

/// The part of a member that ChangedMembers changes.
struct ChangedMember {
  std::atomic<bool> is_in{false};
  EpollMember* next = nullptr;
};

/// One registration: an endpoint under a descriptor number in a set. It knows its event, and what of it has been
/// reported. Guarded by the set's lock, except for the links that endpoint_changed() uses.
class alignas(64) EpollMember final : public Watch, public ListNode<HotMembers> {
 public:
  EpollMember(EpollSet& set, int fd, Ref endpoint) : set_(set), fd_(fd), endpoint_(std::move(endpoint)) {}

  void endpoint_changed() noexcept override;
  Ref owner() noexcept override;
  [[nodiscard]] bool belongs_to_thread() const noexcept override { return false; }
  [[nodiscard]] bool is_taker() const noexcept override { return turn.is_in.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_asleep() const noexcept override;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] Endpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] const epoll_event& event() const { return event_; }
  /// Sets the event, as EPOLL_CTL_ADD and EPOLL_CTL_MOD do. All present conditions count as new.
  void set_event(const epoll_event& event);
  /// Returns false once EPOLLONESHOT has fired, and while it is parked.
  [[nodiscard]] bool is_enabled() const { return enabled_; }
  void disable() { enabled_ = false; }

  /// Asks the endpoint. Returns what epoll_wait(2) would report now, 0 for nothing; edge-triggered members only report
  /// new events.
  std::uint32_t reportable();
  /// Returns the findings of reportable().
  [[nodiscard]] std::uint32_t found() const { return found_; }
  /// Returns whether the findings of reportable() contain anything since the last report.
  [[nodiscard]] bool has_news() const { return found_activity_ != seen_activity_ || (found_ & ~seen_) != 0; }
  /// Records that the findings of reportable() were reported, which consumes edge and one-shot triggers.
  void reported() {
    seen_ = found_;
    seen_activity_ = found_activity_;
    if (event_.events & EPOLLONESHOT) enabled_ = false;
  }

  /// Notes an event of the endpoint that its activity() may not tell: the next reportable() finds an edge.
  void note_edge() { seen_ = 0; }

  [[nodiscard]] bool is_hot() const { return ListNode<HotMembers>::is_linked(); }
  /// Returns whether the peer notes news in a map now: the member may get cold without being armed.
  [[nodiscard]] bool is_listed() const { return listed.listing.lasts(); }
  /// Returns whether the member, whose findings were just reported, has nothing more to report until its peer sends
  /// something, or once its bytes have been read: it reports edges, or it waits for bytes alone.
  [[nodiscard]] bool tells_all_at_once() const;
  /// Returns whether nothing can be reported now, while HotMember::was_told_all. Costs a fraction of reportable(). What
  /// a listed member's peer has sent since is noted in the map.
  [[nodiscard]] bool has_nothing_left() const;

 private:
  /// Stores what the endpoint has to report, without regard to triggers.
  void ask();

  EpollSet& set_;
  const int fd_;
  const Ref endpoint_;
  epoll_event event_{};
  bool enabled_ = true;
  std::uint32_t seen_ = 0;           ///< conditions that were reported and have held since
  std::uint32_t found_ = 0;          ///< by the latest reportable()
  std::uint64_t seen_activity_ = 0;  ///< Endpoint::activity() at that report
  std::uint64_t found_activity_ = 0;

 public:
  // What the parts of the set keep. It follows what reportable() uses, so that a look needs few cache lines.
  HotMember hot;
  ArmedMember armed;
  ListedMember listed;
  /// EPOLL_CTL_DEL has removed it for the caller. Programs often add such a descriptor again at once; it is destroyed
  /// when its endpoint is closed.
  std::atomic<bool> is_parked{false};
  bool is_used_elsewhere = false;  ///< the latest ask() found that: EpollSet::follow_users()
  bool is_set_since_fork = false;  ///< another process that had it before a fork does not know event()
  ChangedMember changed;
  TurnMember turn;
};

}  // namespace ringsock::runtime
