#include "core/poll/epoll_member.h"

#include "core/poll/epoll_set.h"
#include "core/poll/poll_set.h"
#include "core/poll/thread_waits.h"
#include "core/runtime/listable.h"
#include "core/runtime/used_elsewhere.h"

namespace ringsock::runtime {

void EpollMember::endpoint_changed() noexcept {
  if (thread_waits.being_asked == this) {
    // The endpoint may have other doorbells now (a connect that has found its listener).
    armed.is_armed = false;
    return;
  }
  if (is_parked.load()) {
    // Either this load sees that EpollMembers::unpark() has been called, or its thread, which looks afterwards, sees
    // the news.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (is_parked.load()) return;
  }
  set_.members_.changed.push(*this);
  set_.ring();
  set_.note_activity();
  set_.notify_watchers(EPOLLIN);
}

bool EpollMember::is_asleep() const noexcept { return set_.sleepers_.load() > 0 || set_.is_watched(); }

Ref EpollMember::owner() noexcept { return set_.try_add_ref() ? Ref(&set_) : Ref(); }

void EpollMember::ask() {
  const EpollMember* const outer = std::exchange(thread_waits.being_asked, this);
  const std::uint32_t ready = endpoint_->ready();
  thread_waits.being_asked = outer;
  // Read after ready(): what arrives later is a new edge, or the caller finds it.
  found_activity_ = endpoint_->activity();
  found_ = with_normal_bands(ready) & (event_.events | EPOLLERR | EPOLLHUP);
  // The kernel takes a closed file out of the set first. Here the end of its connection may be seen before.
  if (found_ != 0 && endpoint_->is_closed()) [[unlikely]]
    found_ = 0;
  if ((ready & kUsedElsewhere) != 0 && found_ != 0) [[unlikely]] {
    // Nothing is known: wait() finds out first.
    found_ = 0;
    is_used_elsewhere = true;
    set_.must_follow_.store(true);
  }
}

std::uint32_t EpollMember::reportable() {
  if (!enabled_) return 0;
  ask();
  constexpr std::uint32_t kRoom = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
  // A member that is reported again and again without news never gets cold, so no doorbell tells of its peer's end. And
  // one that has nothing but room may have it because the peer has gone, which a look at messages does not show.
  if (found_ != 0 && (!has_news() || (found_ & ~kRoom) == 0)) {
    endpoint_->look_for_end();
    if (endpoint_->activity() != found_activity_) ask();
  }
  if ((event_.events & EPOLLET) == 0) return found_;
  const std::uint64_t news = found_activity_ - seen_activity_;
  const bool has_arrived = news % Endpoint::kOpening != 0;
  const bool has_opened = news / Endpoint::kOpening != 0;
  const bool is_edge =
      (has_arrived && (found_ & ~kRoom) != 0) || (has_opened && (found_ & kRoom) != 0) || (found_ & ~seen_) != 0;
  seen_ &= found_;
  return is_edge ? found_ : 0;
}

bool EpollMember::tells_all_at_once() const {
  constexpr std::uint32_t kBytes = EPOLLIN | EPOLLRDNORM;
  constexpr std::uint32_t kRoom = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
  return (event_.events & EPOLLET) != 0 || ((event_.events & kRoom) == 0 && (found_ & ~kBytes) == 0);
}

bool EpollMember::has_nothing_left() const {
  if (!is_listed()) return false;
  if ((event_.events & EPOLLET) != 0) return true;
  Listable* const endpoint = endpoint_->listable();
  return endpoint != nullptr && !endpoint->has_unread();
}

void EpollMember::set_event(const epoll_event& event) {
  event_ = event;
  is_set_since_fork = true;
  enabled_ = true;
  seen_ = 0;
}

}  // namespace ringsock::runtime
