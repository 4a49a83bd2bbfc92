// A thread that sleeps until endpoints or kernel descriptors are ready.
#pragma once

#include <poll.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/spin_policy.h"

namespace ringsock::runtime {

/// The eventfd on which other threads wake the calling thread; made on first use, closed when the thread ends, made
/// anew in a forked child. -1 when there are no descriptors left.
int thread_bell();
/// Takes what made the bell readable.
void silence_thread_bell();
/// Whether what the calling thread did since the last call rang its own bell, which costs no system call: instead of
/// sleeping it should look again.
bool take_own_ring();

/// Makes one endpoint wake the thread that constructs it, from then until destruction, whenever another thread did work
/// that may be what this one waits for (Endpoint::notify_watchers()) or closed it.
///
/// Descriptors of Endpoint::arm() are not enough when several threads sleep on one endpoint: the first to wake takes
/// the doorbell, and one that was only about to sleep then would miss it.
class SleeperWatch final : public Watch {
 public:
  /// @param bell  thread_bell()
  SleeperWatch(Endpoint& endpoint, std::uint32_t interest, int bell)
      : Watch(interest), endpoint_(endpoint), bell_(bell) {
    entered_ = endpoint_.add_watch(*this);
  }
  SleeperWatch(const SleeperWatch&) = delete;
  SleeperWatch& operator=(const SleeperWatch&) = delete;
  ~SleeperWatch() { leave(); }
  /// False when the endpoint was closed already: do not sleep.
  [[nodiscard]] bool entered() const { return entered_; }
  /// Stops watching; the bell is not rung for this endpoint after return.
  void leave() {
    if (entered_) endpoint_.remove_watch(*this);
    entered_ = false;
  }
  void endpoint_changed() noexcept override;

 private:
  Endpoint& endpoint_;
  int bell_;
  bool entered_;
};

inline timespec to_timespec(Nanos duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

/// ppoll(2) until an absolute time of CLOCK_MONOTONIC (Nanos::max() for ever). Errors: EINTR, ENOMEM, EINVAL.
/// A cancellation point (pthreads(7)): no lock may be held that is not released by unwinding, and no function on the
/// stack may be noexcept, unless NoCancellation holds.
/// @return as ppoll: the number of ready entries, 0 once the deadline has passed.
Result<int> poll_until(std::span<pollfd> fds, Nanos deadline, const sigset_t* mask);

/// The same for a thread that has spun in vain: its next spins for the same learn how long this took
/// (SpinHistory::slept()).
Result<int> sleep_until(WaitFor what, std::span<pollfd> fds, Nanos deadline, const sigset_t* mask);

/// Sleeps on what several processes wait for, each for its turn: what comes wakes one of the sleepers, not all, and
/// while none sleeps the next one that would is not kept from it. For the calling thread, with its bell.
/// @param serial  of the endpoint that has `fds`: no other one in this process ever had it
/// @return 0 once the deadline has passed; bit 0: a descriptor of `fds`; bit 1: the bell. Errors: EINTR; EOPNOTSUPP no
///         descriptor can be had for it.
Result<unsigned> sleep_in_turn(const WaitFds& fds, std::uint64_t serial, int bell, Nanos deadline,
                               const sigset_t* mask);

/// Whether a call that a signal handler interrupted should go on, as recv(2) does: yes when every handler of the
/// process was installed with SA_RESTART. Some 10 us; for blocking calls without a time-out, never for pollers.
bool handlers_restart_calls();

}  // namespace ringsock::runtime
