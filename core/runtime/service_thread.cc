#include "core/runtime/service_thread.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "core/base/own_threads.h"
#include "core/base/signals_blocked.h"
#include "core/runtime/sleeper.h"

namespace ringsock::runtime {

namespace {

[[gnu::constructor]] void install_fork_handlers() {
  service_thread();
  ::pthread_atfork([] { service_thread().before_fork(); }, [] { service_thread().after_fork_in_parent(); },
                   [] { service_thread().after_fork_in_child(); });
}

}  // namespace

ServiceThread& service_thread() {
  // Never destroyed: the thread may run until the process is gone.
  static ServiceThread& thread = *new ServiceThread;
  return thread;
}

// -- starting
// ---------------------------------------------------------------------------------------------------------------

Status ServiceThread::start() {
  if (loop_) return ok();
  auto loop = std::make_shared<Loop>();
  loop->events = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  loop->bell = out_of_the_way(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  epoll_event rung{EPOLLIN, {.u64 = 0}};
  if (!loop->events || !loop->bell || ::epoll_ctl(loop->events.get(), EPOLL_CTL_ADD, loop->bell.get(), &rung) != 0) {
    return Error::last("service thread");
  }
  try {
    const SignalsBlocked blocked;
    std::thread thread([this, loop] { run(loop); });
    thread_ = thread.get_id();
    ::pthread_setname_np(thread.native_handle(), "ringsock");
    thread.detach();
  } catch (const std::system_error& failure) {
    return Error{failure.code().value(), "service thread"};
  }
  loop_ = std::move(loop);
  return ok();
}

// -- the thread
// -------------------------------------------------------------------------------------------------------------

void ServiceThread::run(const std::shared_ptr<Loop>& loop) {
  const OwnThread counted;
  std::unique_lock lock(lock_);
  while (loop_ == loop) {
    run_due_timers(lock);
    const Nanos wake_at = timer_order_.empty() ? Nanos::max() : timer_order_.begin()->first;
    lock.unlock();
    std::array<pollfd, 1> entry{{{loop->events.get(), POLLIN, 0}}};
    static_cast<void>(poll_until(entry, wake_at, nullptr));
    std::array<epoll_event, 32> ready;
    const int count = ::epoll_wait(loop->events.get(), ready.data(), static_cast<int>(ready.size()), 0);
    lock.lock();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = ready[static_cast<std::size_t>(i)];
      if (event.data.u64 != 0) {
        run_watch(lock, event.data.u64, event.events);
      } else {
        eventfd_t rung = 0;
        ::eventfd_read(loop->bell.get(), &rung);
      }
    }
  }
}

template <class Callback>
void ServiceThread::run_unlocked(std::unique_lock<std::mutex>& lock, Id id, Callback callback) {
  running_ = id;
  lock.unlock();
  callback();
  lock.lock();
  running_ = 0;
  callback_done_.notify_all();
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
  if (std::this_thread::get_id() == thread_) return;
  callback_done_.wait(lock, [this, id] { return running_ != id; });
}

// -- watches
// ----------------------------------------------------------------------------------------------------------------

Status ServiceThread::enter(Id id, const Watched& watched) {
  epoll_event event{watched.events, {.u64 = id}};
  if (::epoll_ctl(loop_->events.get(), EPOLL_CTL_ADD, watched.fd, &event) != 0)
    return Error::last("service thread: watch");
  return ok();
}

Result<ServiceThread::Id> ServiceThread::watch(int fd, std::uint32_t events, EventCallback callback) {
  auto watched = std::make_shared<Watched>(Watched{fd, events, std::move(callback)});
  const std::lock_guard guard(lock_);
  Status started = start();
  if (!started) return started.error();
  const Id id = next_id_++;
  const auto place = watches_.emplace(id, watched).first;
  Status entered = enter(id, *watched);
  if (entered) return id;
  watches_.erase(place);
  return entered.error();
}

void ServiceThread::unwatch(Id watch) {
  std::shared_ptr<Watched> gone;  // destroyed after the lock is released: the callback may own anything
  std::unique_lock lock(lock_);
  const auto found = watches_.find(watch);
  if (found != watches_.end()) {
    gone = std::move(found->second);
    watches_.erase(found);
    if (gone->pauses == 0) ::epoll_ctl(loop_->events.get(), EPOLL_CTL_DEL, gone->fd, nullptr);
  }
  wait_until_done(lock, watch);
}

void ServiceThread::pause(Id watch) {
  std::unique_lock lock(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  // Out of the epoll set altogether: with an empty mask it would still report hang-ups, without end.
  if (found->second->pauses++ == 0) ::epoll_ctl(loop_->events.get(), EPOLL_CTL_DEL, found->second->fd, nullptr);
  wait_until_done(lock, watch);
}

Status ServiceThread::resume(Id watch) {
  const std::lock_guard guard(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end() || found->second->pauses == 0) return ok();
  if (--found->second->pauses > 0) return ok();
  return enter(watch, *found->second);
}

// -- timers
// -----------------------------------------------------------------------------------------------------------------

Result<ServiceThread::Id> ServiceThread::schedule(Nanos when, TimerCallback callback) {
  const std::lock_guard guard(lock_);
  Status started = start();
  if (!started) return started.error();
  const Id id = next_id_++;
  timers_.emplace(id, Timer{when, std::move(callback)});
  timer_order_.emplace(when, id);
  // The thread itself looks at its timers before it sleeps.
  const bool is_away = std::this_thread::get_id() != thread_;
  if (is_away && timer_order_.begin()->second == id) ::eventfd_write(loop_->bell.get(), 1);
  return id;
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
// -------------------------------------------------------------------------------------------------------------------

void ServiceThread::before_fork() { lock_.lock(); }

void ServiceThread::after_fork_in_parent() { lock_.unlock(); }

void ServiceThread::after_fork_in_child() {
  if (loop_) {
    // The thread that is not here shares ownership of the loop, so the descriptors are closed by hand.
    loop_->events.reset();
    loop_->bell.reset();
    loop_.reset();
    // Callbacks own endpoints; destroying those is no work for a fork handler.
    left_to_parent_.push_back({std::exchange(watches_, {}), std::exchange(timers_, {})});
    timer_order_.clear();
  }
  running_ = 0;
  thread_ = {};
  // Threads that are not here may have been waiting on it.
  new (&callback_done_) std::condition_variable;
  lock_.unlock();
}

}  // namespace ringsock::runtime
