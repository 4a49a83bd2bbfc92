// A completion channel: the descriptor that sleepers wait on, and the completion events that are due.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// The channel's fd is an epoll descriptor with the descriptors of its queue pairs (their peers ring there) and, once a
/// completion arose on this side, an eventfd.
/// Threads: all functions from any thread. The lock is a leaf: nothing is called with it held.
class CompletionChannel final : public ibv_comp_channel {
 public:
  static Result<std::unique_ptr<CompletionChannel>> create(ibv_context& context);

  /// `on_readable` runs inside next_event() whenever `watched` is readable, and must make it unreadable. It may still
  /// be running in another thread when unwatch() returns, so it must own what it uses. Errors: those of epoll_ctl(2).
  Result<std::uint64_t> watch(int watched, std::function<void()> on_readable);
  void unwatch(std::uint64_t watch, int watched);
  // The same for a descriptor that stays readable while it is not armed: `on_readable` runs once per rearm(). Behind
  // the event the descriptor stays in the epoll set, because most threads that were woken arm again at once. A caller
  // that does not should disarm(): a socket notifies its epoll set of each packet (0.2 us).
  std::uint64_t watch_when_armed(int watched, std::function<void()> on_readable);
  void rearm(std::uint64_t watch);
  /// Takes the descriptor out of the set, for a caller that has made the event pending by other means.
  void disarm(std::uint64_t watch);

  /// Makes a completion event of `cq` pending.
  void raise(ibv_cq& cq);
  /// ibv_get_cq_event(3) without blocking. Error: EAGAIN.
  Result<ibv_cq*> next_event();
  /// Drops the pending events of a completion queue that is being destroyed. Returns their number.
  unsigned forget(const ibv_cq& cq);

 private:
  explicit CompletionChannel(UniqueFd epoll);
  struct Watch {
    int watched;
    bool only_when_armed;
    std::function<void()> on_readable;
    bool is_in_set = true;  ///< of epoll
    bool is_armed = true;
  };
  void run_watches();
  void update_signal();

  UniqueFd epoll_;
  UniqueFd eventfd_;  ///< made when first needed
  std::mutex lock_;
  std::deque<ibv_cq*> due_;
  bool signalled_ = false;
  int collectors_ = 0;  ///< threads in next_event(): they look at due_ anyway, so raise() need not wake them
  std::uint64_t last_watch_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Watch>> watches_;
};

}  // namespace ringsock::soft
