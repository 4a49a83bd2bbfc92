// The one thread the library has of its own: for work that must go on while the application is away (design D9).
#pragma once

#include <sys/epoll.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::runtime {

/// Calls back when descriptors become ready and timers run out. Started when first needed, with all signals blocked,
/// under the name "ringsock"; never joined: it must not hold up a process that exits. Callbacks run one at a time, on
/// the service thread, without locks of this class; they may call everything here. They must not sleep long: all others
/// wait. A forked child has no service thread and no watches or timers until it asks for some: what was watched before
/// the fork is the parent's.
class ServiceThread {
 public:
  using Id = std::uint64_t;  ///< of a watch or a timer; never 0, never used again
  using EventCallback = std::function<void(std::uint32_t events)>;
  using TimerCallback = std::function<void()>;

  ServiceThread() = default;
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  /// Calls `callback` with the EPOLL* conditions of `fd`, level-triggered, as long as they hold. The descriptor must
  /// stay open until unwatch(). Errors: EBADF, EEXIST watched already, EPERM, EMFILE, ENOMEM, ENOSPC, EAGAIN no thread
  /// could be started.
  Result<Id> watch(int fd, std::uint32_t events, EventCallback callback);
  /// No callback of this watch runs or comes after return (unless called from within it). Harmless when it is gone.
  void unwatch(Id watch);
  /// Stops the callbacks of a watch, with the same guarantee as unwatch(), until resume() was called as often. One
  /// system call each. Harmless when the watch is gone. Errors of resume(): ENOMEM, ENOSPC.
  void pause(Id watch);
  Status resume(Id watch);

  /// Calls `callback` once, at `when` (CLOCK_MONOTONIC) or soon after. Errors: EMFILE, ENOMEM, EAGAIN.
  Result<Id> schedule(Nanos when, TimerCallback callback);
  /// The callback does not run and does not come after return (unless called from within it).
  /// @return whether it had not run yet.
  bool cancel(Id timer);

  /// Around fork(2); installed for service_thread().
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Watched {
    int fd;
    std::uint32_t events;
    EventCallback callback;
    unsigned pauses = 0;
  };
  /// What the thread sleeps on. The thread ends when it is not loop_ any more.
  struct Loop {
    UniqueFd events;  ///< epoll; data: the watch's Id, 0 for the bell
    UniqueFd bell;    ///< eventfd: an earlier timer has come
  };
  struct Timer {
    Nanos when;
    TimerCallback callback;
  };

  using Watches = std::unordered_map<Id, std::shared_ptr<Watched>>;
  using Timers = std::unordered_map<Id, Timer>;

  Status start();
  /// The thread, which keeps `loop` alive: in a forked child there may be another one.
  void run(const std::shared_ptr<Loop>& loop);
  void run_due_timers(std::unique_lock<std::mutex>& lock);
  void run_watch(std::unique_lock<std::mutex>& lock, Id id, std::uint32_t events);
  /// Calls `callback` without the lock.
  template <class Callback>
  void run_unlocked(std::unique_lock<std::mutex>& lock, Id id, Callback callback);
  void wait_until_done(std::unique_lock<std::mutex>& lock, Id id);
  Status enter(Id id, const Watched& watched);

  std::mutex lock_;
  std::condition_variable callback_done_;
  std::shared_ptr<Loop> loop_;  ///< null until first needed
  std::thread::id thread_;
  Watches watches_;
  Timers timers_;
  std::vector<std::pair<Watches, Timers>> left_to_parent_;  ///< in a forked child: never called, never destroyed
  std::set<std::pair<Nanos, Id>> timer_order_;
  Id next_id_ = 1;
  Id running_ = 0;  ///< whose callback runs now
};

/// The service thread of this process.
ServiceThread& service_thread();

}  // namespace ringsock::runtime
