#include "core/runtime/service_thread.h"

#include <sys/single_threaded.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/no_cancellation.h"
#include "core/base/of_thread.h"
#include "core/base/own_threads.h"
#include "core/base/poll_until.h"
#include "core/base/signals_blocked.h"
#include "core/runtime/library_call.h"

namespace ringsock::runtime {

namespace {

/// The time between failed attempts to start the thread: servers ask for it with every connection.
constexpr Nanos kStartInterval = std::chrono::seconds(1);
/// The time between looks where the thread cannot sleep on descriptors, or has no memory for its work.
constexpr Nanos kBlindSleep = std::chrono::milliseconds(10);

/// An object of the main thread.
struct MainThread {
  ~MainThread() { service_thread().main_thread_ends(MainThreadEnd::by_libc); }
};
thread_local constinit OfThread<MainThread> main_thread;

[[gnu::constructor]] void install_fork_handlers() {
  service_thread();
  // Without a system call, which a filter may forbid.
  if (__libc_single_threaded) main_thread.get();
  at_fork(
      ForkStep::service_thread, [] { service_thread().before_fork(); }, [] { service_thread().after_fork_in_parent(); },
      [] {
        service_thread().after_fork_in_child();
        main_thread.get();
      });
}

}  // namespace

ServiceThread& service_thread() { return process_state<ServiceThread>(); }

// -- starting

Status ServiceThread::start_thread() {
  if (thread_ != std::thread::id() || resters_ > 0) return ok();
  if (!start_failure_ && monotonic_now() < next_start_) return start_failure_;
  start_failure_ = launch();
  if (start_failure_) return ok();
  next_start_ = monotonic_now() + kStartInterval;
  if (!std::exchange(told_of_failure_, true))
    log_warn("no service thread can be started: %s: only calls of the application do the library's work",
             std::strerror(start_failure_.error().code));
  return start_failure_;
}

/// Starts a thread that replaces the current one, which ends when it wakes up.
Status ServiceThread::launch() {
  process_.store(::getpid(), std::memory_order_relaxed);
  const pid_t before = number_.exchange(kStarting, std::memory_order_release);
  try {
    const SignalsBlocked blocked;
    std::thread thread([this, generation = generation_ + 1] { run(generation); });
    thread_ = thread.get_id();
    ::pthread_setname_np(thread.native_handle(), "ringsock");
    thread.detach();
  } catch (const std::exception& failure) {
    number_.store(before, std::memory_order_relaxed);
    const auto* const by_system = dynamic_cast<const std::system_error*>(&failure);
    return Error{by_system != nullptr ? by_system->code().value() : ENOMEM, "service thread"};
  }
  ++generation_;
  is_asleep_ = false;
  return ok();
}

void ServiceThread::rest() {
  pid_t rested = 0;
  {
    std::unique_lock lock(lock_);
    ++resters_;
    if (thread_ == std::this_thread::get_id()) return;
    if (thread_ != std::thread::id()) {
      is_ending_ = true;
      ++generation_;
      is_asleep_ = false;
      wake_thread();
      woken_.notify_all();
      thread_ = {};
    }
    callback_done_.wait(lock, [this] { return !is_ending_; });
    rested = rested_;
  }
  if (rested == 0) return;
  // libc has released the thread once the kernel has.
  const timespec pause{0, 50'000};
  while (::tgkill(::getpid(), rested, 0) == 0) ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  const std::lock_guard guard(lock_);
  rested_ = 0;
}

void ServiceThread::go_on() {
  const std::lock_guard guard(lock_);
  if (--resters_ == 0 && (!watches_.empty() || !timers_.empty())) static_cast<void>(start_thread());
}

pid_t ServiceThread::thread_number() const {
  const pid_t number = number_.load(std::memory_order_acquire);
  return number != 0 && process_.load(std::memory_order_relaxed) == ::getpid() ? number : 0;
}

WithoutServiceThread::WithoutServiceThread() : process_(::getpid()) {
  const LibraryCall no_handlers;
  service_thread().rest();
}

WithoutServiceThread::~WithoutServiceThread() {
  // A child may have been made without our fork handlers, and none of its state can be relied on.
  if (::getpid() != process_) return;
  const LibraryCall no_handlers;
  service_thread().go_on();
}

/// Makes a new loop with all watches whose descriptors still refer to the same files.
Status ServiceThread::start_loop() {
  if (has_loop()) return ok();
  auto made = ServiceLoop::make();
  if (!made) return made.error();
  loop_ = *std::move(made);
  for (const auto& [id, watched] : watches_) {
    if (watched->pauses > 0) continue;
    if (Status entered = enter(id, *watched); !entered) log_debug("descriptor %d is not watched any more", watched->fd);
  }
  woken_.notify_all();
  return ok();
}

/// Returns whether there is a loop whose descriptors are ours.
bool ServiceThread::has_loop() {
  if (loop_ && !loop_->is_ours()) lose_loop();
  return loop_ != nullptr;
}

void ServiceThread::lose_loop() {
  log_info("the application has closed descriptors of the service thread");
  loop_->close();
  loop_.reset();
  // A thread that fell asleep just after the numbers were reused for other files may never wake up.
  if (is_asleep_) static_cast<void>(launch());
}

/// Wakes the thread. Does nothing on the thread itself, which looks at everything before it sleeps.
void ServiceThread::wake_thread() {
  if (std::this_thread::get_id() == thread_) return;
  if (loop_ && !loop_->ring()) lose_loop();
  if (!loop_) woken_.notify_all();
}

// -- the thread

void ServiceThread::set_placement(ThreadPlacement placement) {
  const std::lock_guard guard(lock_);
  placement_ = std::move(placement);
}

void ServiceThread::place_thread() {
  std::unique_lock lock(lock_);
  if (placement_.is_default()) return;
  const ThreadPlacement placement = placement_;
  lock.unlock();
  if (const Status placed = place_this_thread(placement); !placed)
    log_warn("the service thread runs on any CPU: %s: %s", placed.error().where, std::strerror(placed.error().code));
}

void ServiceThread::run(unsigned generation) {
  const OwnThread counted;
  place_thread();
  std::unique_lock lock(lock_);
  if (generation_ == generation) number_.store(::gettid(), std::memory_order_release);
  while (generation_ == generation && !last_look_.finds_nobody()) {
    run_due_timers(lock);
    sleep(lock, generation);
  }
  if (generation_ == generation) return end_as_last(lock);
  // If rest() ends this thread, no successor has been started yet; otherwise a successor is in charge.
  if (!is_ending_ || generation_ != generation + 1) return;
  is_ending_ = false;
  number_.store(0, std::memory_order_relaxed);
  rested_ = ::gettid();
  callback_done_.notify_all();
}

void ServiceThread::main_thread_ends(MainThreadEnd how) {
  // Any thread may make the system call, and a child that shares this memory (CLONE_VM). A process without the service
  // thread may be forbidden to ask who it is.
  const bool is_known = how == MainThreadEnd::by_libc;
  if (!is_known && (thread_number() == 0 || ::gettid() != ::getpid())) return;
  const std::lock_guard guard(lock_);
  last_look_.begin(how);
  wake_thread();
}

/// Ends the process. The handlers of exit(3) need a service thread, which this one is no longer.
void ServiceThread::end_as_last(std::unique_lock<std::mutex>& lock) {
  const LastLook look = std::exchange(last_look_, {});
  ++generation_;
  thread_ = {};
  number_.store(0, std::memory_order_relaxed);
  const bool exits = look.how() == MainThreadEnd::by_libc;
  if (exits) static_cast<void>(start_thread());
  lock.unlock();
  ::pthread_sigmask(SIG_SETMASK, &look.mask(), nullptr);
  if (exits) std::exit(0);
}

void ServiceThread::sleep(std::unique_lock<std::mutex>& lock, unsigned generation) {
  if (generation_ != generation) return;  // rest() came while a callback was running
  const Nanos next_timer = timer_order_.empty() ? Nanos::max() : timer_order_.begin()->first;
  const Nanos wake_at = std::min(next_timer, last_look_.next());
  const std::shared_ptr<ServiceLoop> loop = loop_;
  if (!loop) {
    if (wake_at == Nanos::max()) return woken_.wait(lock);
    woken_.wait_until(lock, std::chrono::steady_clock::time_point(wake_at));
    return;
  }
  is_asleep_ = true;
  lock.unlock();
  // The bell has its own entry: ppoll(2) holds its file open when another thread closes the number, and so notices when
  // the writing end is closed.
  std::array<pollfd, 2> entries{{{loop->events(), POLLIN, 0}, {loop->bell(), POLLIN, 0}}};
  const Result<int> ready = poll_until(entries, wake_at, nullptr);
  lock.lock();
  if (generation_ != generation) return;
  is_asleep_ = false;
  // ppoll(2) fails for ever where RLIMIT_NOFILE is nearly nothing.
  if (!ready && ready.error().code != EINTR) woken_.wait_for(lock, kBlindSleep);
  if (loop_ != loop || (ready && *ready == 0)) return;
  const bool is_rung = (entries[1].revents & POLLIN) != 0;
  const bool is_whole = (entries[1].revents & ~POLLIN) == 0;
  if (!is_whole || !loop->is_ours()) return lose_loop();
  if (is_rung) loop->silence();
  run_ready_watches(lock, loop->events());
}

void ServiceThread::run_ready_watches(std::unique_lock<std::mutex>& lock, int events_fd) {
  std::array<epoll_event, 32> ready;
  const int count = ::epoll_wait(events_fd, ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    if (event.data.u64 != 0) run_watch(lock, event.data.u64, event.events);
  }
}

template <class Callback>
void ServiceThread::run_unlocked(std::unique_lock<std::mutex>& lock, Id id, Callback callback) {
  bool has_memory = true;
  running_ = id;
  lock.unlock();
  try {
    callback();
  } catch (const std::bad_alloc&) {
    log_info("no memory for the work of the service thread");
    has_memory = false;
  }
  lock.lock();
  running_ = 0;
  callback_done_.notify_all();
  // A descriptor that is still ready would call again at once.
  if (!has_memory) woken_.wait_for(lock, kBlindSleep);
}

void ServiceThread::run_due_timers(std::unique_lock<std::mutex>& lock) {
  while (!timer_order_.empty() && timer_order_.begin()->first <= monotonic_now()) {
    const Id id = timer_order_.begin()->second;
    timer_order_.erase(timer_order_.begin());
    auto timer = timers_.extract(id);
    run_unlocked(lock, id, [&timer] {
      timer.mapped().callback();
      timer = {};
    });
  }
}

void ServiceThread::run_watch(std::unique_lock<std::mutex>& lock, Id id, std::uint32_t events) {
  const auto found = watches_.find(id);
  if (found == watches_.end() || found->second->pauses > 0) return;
  run_unlocked(lock, id, [watched = found->second, events]() mutable {
    watched->callback(events);
    watched.reset();
  });
}

void ServiceThread::wait_until_done(std::unique_lock<std::mutex>& lock, Id id) {
  if (id == 0 || std::this_thread::get_id() == thread_) return;
  const NoCancellation hold;  // destructors wait here
  callback_done_.wait(lock, [this, id] { return running_ != id; });
}

// -- watches

Status ServiceThread::enter(Id id, const Watched& watched) {
  const auto file = FileIdentity::of(watched.fd);
  if (!file) return file.error();
  if (*file != watched.file) return Error{EBADF, "service thread: another file has the number"};
  epoll_event event{watched.events, {.u64 = id}};
  if (::epoll_ctl(loop_->events(), EPOLL_CTL_ADD, watched.fd, &event) != 0) return Error::last("service thread: watch");
  return ok();
}

/// Harmless when another file has the number, because that file is not in the set.
void ServiceThread::take_out(const Watched& watched) {
  if (has_loop()) ::epoll_ctl(loop_->events(), EPOLL_CTL_DEL, watched.fd, nullptr);
}

Result<ServiceThread::Id> ServiceThread::watch(int fd, std::uint32_t events, EventCallback callback) try {
  const auto file = FileIdentity::of(fd);
  if (!file) return file.error();
  auto watched = std::make_shared<Watched>(Watched{fd, *file, events, std::move(callback)});
  const std::lock_guard guard(lock_);
  make_place_for_child();
  if (Status started = start_thread(); !started) return started.error();
  if (Status started = start_loop(); !started) return started.error();
  const Id id = next_id_++;
  const auto place = watches_.try_emplace(id).first;
  if (Status entered = enter(id, *watched); !entered) {
    watches_.erase(place);
    return entered.error();
  }
  place->second = std::move(watched);
  return id;
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "service thread: watch"};
}

void ServiceThread::unwatch(Id watch) {
  std::shared_ptr<Watched> gone;  // destroyed after the lock is released: the callback may own anything
  std::unique_lock lock(lock_);
  const auto found = watches_.find(watch);
  if (found != watches_.end()) {
    gone = std::move(found->second);
    watches_.erase(found);
    if (gone->pauses == 0) take_out(*gone);
  }
  wait_until_done(lock, watch);
}

void ServiceThread::pause(Id watch) {
  std::unique_lock lock(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  // Removed from the epoll set: with an empty mask it would report hang-ups for ever.
  if (found->second->pauses++ == 0) take_out(*found->second);
  wait_until_done(lock, watch);
}

Status ServiceThread::resume(Id watch) {
  const std::lock_guard guard(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end() || found->second->pauses == 0) return ok();
  if (--found->second->pauses > 0) return ok();
  // A set that is made anew contains it already.
  if (!has_loop()) return start_loop();
  return enter(watch, *found->second);
}

// -- timers

Result<ServiceThread::Id> ServiceThread::schedule(Nanos when, TimerCallback callback) {
  const std::lock_guard guard(lock_);
  if (Status started = start_thread(); !started) return started.error();
  const Id id = next_id_++;
  if (Status entered = enter_timer(when, id); !entered) return entered.error();
  timers_.find(id)->second = {when, std::move(callback)};
  if (timer_order_.begin()->second == id) wake_thread();
  return id;
}

/// Makes the entries of a timer, without its callback, which may own anything and is not to be destroyed under the
/// lock.
Status ServiceThread::enter_timer(Nanos when, Id id) try {
  make_place_for_child();
  const auto place = timer_order_.emplace(when, id).first;
  try {
    timers_.try_emplace(id);
  } catch (const std::bad_alloc&) {
    timer_order_.erase(place);
    throw;
  }
  return ok();
} catch (const std::bad_alloc&) {
  return Error{ENOMEM, "service thread: timer"};
}

bool ServiceThread::cancel(Id timer) {
  decltype(timers_)::node_type gone;  // as in unwatch()
  std::unique_lock lock(lock_);
  gone = timers_.extract(timer);
  if (gone) timer_order_.erase({gone.mapped().when, timer});
  wait_until_done(lock, timer);
  return !gone.empty();
}

// -- fork

/// Called with lock_ held.
void ServiceThread::make_place_for_child() {
  if (!place_for_child_) place_for_child_ = std::make_unique<LeftToParent>();
}

void ServiceThread::before_fork() { lock_.lock(); }

void ServiceThread::after_fork_in_parent() { lock_.unlock(); }

void ServiceThread::after_fork_in_child() {
  // The thread, which the child does not have, shares ownership of the loop, so the descriptors are closed explicitly.
  if (loop_) loop_->close();
  // Callbacks own endpoints, which a fork handler must not destroy.
  if (place_for_child_) {
    watches_.swap(place_for_child_->watches);
    timers_.swap(place_for_child_->timers);
    loop_.swap(place_for_child_->loop);
    place_for_child_->earlier = std::move(left_to_parent_);
    left_to_parent_ = std::move(place_for_child_);
  }
  timer_order_.clear();
  running_ = 0;
  thread_ = {};
  resters_ = 0;
  is_ending_ = false;
  number_.store(0, std::memory_order_relaxed);
  rested_ = 0;
  last_look_ = {};
  next_start_ = Nanos::zero();
  is_asleep_ = false;
  // Threads that the child does not have may have been waiting on them.
  new (&callback_done_) std::condition_variable;
  new (&woken_) std::condition_variable;
  lock_.unlock();
}

}  // namespace ringsock::runtime
