// A thread that sleeps until endpoints or kernel descriptors are ready.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/poll/spin_policy.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// Returns the eventfd by which other threads wake the calling thread. It is made on first use, closed when the thread
/// ends, and made anew in a forked child. -1 when there are no descriptors left.
int thread_bell();
/// Makes the bell unreadable again.
void silence_thread_bell();
/// Returns whether the calling thread has rung its own bell since the last call; it should then look again instead of
/// sleeping. Costs no system call.
bool take_own_ring();

/// While it exists, an endpoint wakes the thread that constructed it whenever another thread did work that this one may
/// wait for (Endpoint::notify_watchers()), or closed the endpoint.
///
/// Descriptors of Endpoint::arm() are not sufficient when several threads sleep on one endpoint: the first to wake
/// consumes the doorbell, and a thread that is just about to sleep would miss it.
class SleeperWatch final : public Watch {
 public:
  /// @param bell      thread_bell()
  /// @param is_taker  for a call; a poller takes nothing
  SleeperWatch(Endpoint& endpoint, std::uint32_t interest, int bell, bool is_taker = false)
      : Watch(interest),
        endpoint_(endpoint),
        bell_(bell),
        is_taker_(is_taker),
        waits_for_room_((interest & EPOLLOUT) != 0) {
    entered_ = endpoint_.add_watch(*this);
  }
  SleeperWatch(const SleeperWatch&) = delete;
  SleeperWatch& operator=(const SleeperWatch&) = delete;
  ~SleeperWatch() { leave(); }
  /// Returns false when the endpoint was closed already; the caller must not sleep then.
  [[nodiscard]] bool entered() const { return entered_; }
  [[nodiscard]] bool waits_for_room() const { return waits_for_room_; }
  /// Stops watching; the bell is not rung for this endpoint after return.
  void leave() {
    if (entered_) endpoint_.remove_watch(*this);
    entered_ = false;
  }
  void endpoint_changed() noexcept override;
  [[nodiscard]] bool is_taker() const noexcept override { return is_taker_; }

 private:
  Endpoint& endpoint_;
  int bell_;
  const bool is_taker_;
  const bool waits_for_room_;
  bool entered_;
};

/// Sleeps after a spin in vain. Records the duration for the next spins of the same kind (SpinHistory::slept()).
Result<int> sleep_until(WaitFor what, std::span<pollfd> fds, Nanos deadline, const sigset_t* mask);

/// The same in epoll_wait(2), rounded up to milliseconds, so that a member with EPOLLEXCLUSIVE wakes the thread in turn
/// with others. A signal without a handler that comes while the caller holds signals ends it, too.
/// @return the number of `events`, 0 once the deadline has passed, or earlier. Errors: EINTR.
Result<int> sleep_on_epoll_file(int epoll_fd, std::span<epoll_event> events, Nanos deadline, const sigset_t* mask);

/// Sleeps on descriptors for which several processes or threads take turns: an event wakes one of the sleepers, not
/// all. An event that comes while none sleeps makes the next sleep return at once. `bell` is the calling thread's.
/// @param serial the number of the endpoint that has `fds`, unique within the process
/// @return 0 once the deadline has passed; bit 0: a descriptor of `fds`; bit 1: the bell. Errors: EINTR; EOPNOTSUPP no
/// descriptor is available for it.
Result<unsigned> sleep_in_turn(const WaitFds& fds, std::uint64_t serial, int bell, Nanos deadline,
                               const sigset_t* mask);

/// Returns whether a call that a signal handler interrupted should go on, as recv(2) does: true when the handlers that
/// wait for the end of the call have SA_RESTART. Where a handler has run already, nobody knows which one, so every
/// handler of the process must have been installed with SA_RESTART; that look takes about 10 us. For blocking calls
/// without a time-out, never for pollers.
bool handlers_restart_calls();

}  // namespace ringsock::runtime
