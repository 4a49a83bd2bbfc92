// The only thread of the library: for work that must go on while the application makes no calls (design D9).
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/base/result.h"
#include "core/runtime/last_look.h"
#include "core/runtime/service_loop.h"
#include "core/runtime/thread_placement.h"

namespace ringsock::runtime {

/// Calls back when descriptors become ready and timers run out. Started when first needed, with all signals blocked,
/// under the name "ringsock"; never joined: it must not hold up a process that exits. Callbacks run one at a time, on
/// the service thread, without locks of this class; they may call everything here. They must not sleep long: all others
/// wait. A forked child has no service thread and no watches or timers until it asks for some: what was watched before
/// the fork is the parent's.
///
/// Where no thread can be started (RLIMIT_NPROC, a seccomp filter), watch() and schedule() fail and the callers go on
/// without; nothing here waits for a thread that is not there. An application may close the descriptors that the thread
/// sleeps on, and open others with their numbers: each use first proves that they are still ours. Timers go on without
/// them, and the next watch() makes them anew, on the thread that calls: the service thread itself opens nothing, as an
/// application that has closed descriptor 0 counts on the next one's number.
class ServiceThread {
 public:
  static constexpr ProcessPart kPart = ProcessPart::service_thread;
  using Id = std::uint64_t;  ///< of a watch or a timer; never 0, never used again
  using EventCallback = std::function<void(std::uint32_t events)>;
  using TimerCallback = std::function<void()>;

  ServiceThread() = default;
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  /// Calls `callback` with the EPOLL* conditions of `fd`, level-triggered, as long as they hold. The descriptor must
  /// stay open until unwatch(). Errors: EBADF, EEXIST watched already, EPERM, EMFILE, ENOMEM, ENOSPC; that of
  /// pthread_create(3), which is tried again after a second.
  Result<Id> watch(int fd, std::uint32_t events, EventCallback callback);
  /// After return no callback of this watch is running or follows (unless called from within it). Harmless when the
  /// watch is gone, and for 0, which is no watch.
  void unwatch(Id watch);
  /// Stops the callbacks of a watch, with the same guarantee as unwatch(), until resume() was called as often as
  /// pause(). Each costs a few system calls. Harmless when the watch is gone. Errors of resume(): those of watch().
  void pause(Id watch);
  Status resume(Id watch);

  /// Calls `callback` once, at `when` (CLOCK_MONOTONIC) or soon afterwards. Errors: ENOMEM, those of pthread_create(3).
  Result<Id> schedule(Nanos when, TimerCallback callback);
  /// After return the callback is not running and does not follow (unless called from within it).
  /// @return whether it had not run yet.
  bool cancel(Id timer);

  /// Ends the thread until go_on() starts another one. For a direct clone(2), after which libc would assume that the
  /// child has the thread, too. Meanwhile no thread is started, and timers and watches wait. Several callers may rest
  /// it: the last go_on() counts. Waits for a running callback, unless called from it: then the thread stays.
  void rest();
  void go_on();
  static constexpr pid_t kStarting = -1;
  /// Returns the kernel's number of the thread, kStarting, or 0 when this process has none. A child that shares the
  /// memory of its parent (vfork(2)) has none. Threads: any.
  [[nodiscard]] pid_t thread_number() const;

  /// Called by the main thread when it begins to end. Once the application has no thread left, the process ends: by
  /// exit(3) on the service thread, with the signal mask of the main thread, as libc lets its last thread do. Where the
  /// main thread has ended past libc, no thread calls exit(3), and the service thread just ends. Threads: harmless in
  /// others for by_system_call.
  void main_thread_ends(MainThreadEnd how);

  /// Where the thread runs; counts from its next start on. What is not possible is logged, and the thread runs
  /// elsewhere.
  void set_placement(ThreadPlacement placement);

  /// Handlers for fork(2), installed for service_thread().
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Watched {
    int fd;
    FileIdentity file;
    std::uint32_t events;
    EventCallback callback;
    unsigned pauses = 0;
  };
  struct Timer {
    Nanos when;
    TimerCallback callback;
  };

  using Watches = std::unordered_map<Id, std::shared_ptr<Watched>>;
  using Timers = std::unordered_map<Id, Timer>;

  Status start_thread();
  Status launch();
  Status start_loop();
  void lose_loop();
  void wake_thread();
  bool has_loop();
  void run(unsigned generation);
  void place_thread();
  void end_as_last(std::unique_lock<std::mutex>& lock);
  /// Sleeps until a timer is due or something else has happened.
  void sleep(std::unique_lock<std::mutex>& lock, unsigned generation);
  void run_ready_watches(std::unique_lock<std::mutex>& lock, int events_fd);
  void run_due_timers(std::unique_lock<std::mutex>& lock);
  void run_watch(std::unique_lock<std::mutex>& lock, Id id, std::uint32_t events);
  /// Calls `callback` without the lock.
  template <class Callback>
  void run_unlocked(std::unique_lock<std::mutex>& lock, Id id, Callback callback);
  void wait_until_done(std::unique_lock<std::mutex>& lock, Id id);
  Status enter(Id id, const Watched& watched);
  Status enter_timer(Nanos when, Id id);
  void make_place_for_child();
  void take_out(const Watched& watched);

  std::mutex lock_;
  std::condition_variable callback_done_;
  std::condition_variable woken_;      ///< for a thread without a loop
  std::shared_ptr<ServiceLoop> loop_;  ///< null until first needed, and when its descriptors were lost
  std::thread::id thread_;             ///< no id: none
  unsigned resters_ = 0;               ///< calls of rest() without go_on(): no thread is started
  bool is_ending_ = false;             ///< the thread that rest() ends has not noticed it yet
  std::atomic<pid_t> number_{0};       ///< of the thread that is in charge
  std::atomic<pid_t> process_{0};      ///< of that thread
  pid_t rested_ = 0;                   ///< the ended thread's id, until the kernel has no thread of that id any more
  unsigned generation_ = 0;            ///< of the thread that is in charge
  bool is_asleep_ = false;             ///< that thread, on the loop's descriptors
  Status start_failure_ = ok();        ///< of the last attempt
  Nanos next_start_ = Nanos::zero();   ///< not before
  bool told_of_failure_ = false;
  ThreadPlacement placement_;
  LastLook last_look_;
  Watches watches_;
  Timers timers_;
  /// The parent's entries in a forked child, never called and never destroyed. The loops are closed; the parent's
  /// thread shares their ownership.
  struct LeftToParent {
    Watches watches;
    Timers timers;
    std::shared_ptr<ServiceLoop> loop;
    std::unique_ptr<LeftToParent> earlier;  ///< of the parent's parent
  };
  std::unique_ptr<LeftToParent> left_to_parent_;
  std::unique_ptr<LeftToParent> place_for_child_;  ///< made with the first entry: a fork handler takes no memory
  std::set<std::pair<Nanos, Id>> timer_order_;
  Id next_id_ = 1;
  Id running_ = 0;  ///< the watch or timer whose callback runs now
};

/// The service thread of this process.
ServiceThread& service_thread();

/// Ends the service thread for the time of a call that a process with one thread may make, or that changes what a new
/// thread gets from the caller.
class WithoutServiceThread {
 public:
  WithoutServiceThread();
  WithoutServiceThread(const WithoutServiceThread&) = delete;
  WithoutServiceThread& operator=(const WithoutServiceThread&) = delete;
  ~WithoutServiceThread();

 private:
  const pid_t process_;
};

}  // namespace ringsock::runtime
