#include "core/runtime/fork_registry.h"

#include <unistd.h>

#include <mutex>
#include <new>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/runtime/rcu.h"

namespace ringsock::runtime {

namespace {

/// Locks all as std::lock() does: it never holds one lock while waiting for another, so the order in which other
/// threads take them does not matter.
void lock_all(const std::vector<Mutex*>& mutexes) {
  const std::size_t count = mutexes.size();
  for (std::size_t first = 0; count != 0;) {
    mutexes[first]->lock();
    std::size_t held = 1;
    while (held < count && mutexes[(first + held) % count]->try_lock()) ++held;
    if (held == count) return;
    for (std::size_t i = 0; i < held; ++i) mutexes[(first + i) % count]->unlock();
    first = (first + held) % count;  // the busy one: wait for it next time
  }
}

void unlock_all(std::vector<Mutex*>& mutexes) {
  for (Mutex* mutex : mutexes) mutex->unlock();
  mutexes.clear();
}

/// Before a reference is taken, which would be lost where there is no memory to note it.
void make_room(std::vector<Ref>& refs) {
  if (refs.size() == refs.capacity()) refs.reserve(2 * refs.size() + 8);
}

}  // namespace

void ForkLocks::reserve(std::size_t endpoints) {
  outer_.reserve(2 * endpoints);
  within_.reserve(endpoints);
  for (auto& level : biased_) level.reserve(endpoints);
  inner_.reserve(2 * endpoints);
}

void ForkHeld::reserve(std::size_t count) {
  locks.reserve(count);
  endpoints.reserve(count);  // last: it tells the room
}

void ForkLocks::lock() {
  lock_all(outer_);
  for (LocksWithin* owner : within_) owner->add_locks_within(*this);
  for (auto& level : biased_) {
    if (level.empty()) continue;
    for (BiasedMutex* mutex : level) mutex->lock_out_begin();
    BiasedMutex::lock_out_barrier();
    for (BiasedMutex* mutex : level) mutex->lock_out_finish();
  }
  lock_all(inner_);
}

void ForkLocks::unlock(bool in_child) {
  unlock_all(inner_);
  for (auto level = biased_.rbegin(); level != biased_.rend(); ++level) {
    for (BiasedMutex* mutex : *level) mutex->let_in(in_child);
    level->clear();
  }
  within_.clear();
  unlock_all(outer_);
}

ForkRegistry& fork_registry() { return process_state<ForkRegistry>(); }

void ForkRegistry::install_handlers() {
  at_fork(
      ForkStep::endpoints, [] { fork_registry().before_fork(); }, [] { fork_registry().after_fork_in_parent(); },
      [] { fork_registry().after_fork_in_child(); });
  at_strange_child([] { fork_registry().forget_all(); });
}

namespace {
[[gnu::constructor]] void install() { fork_registry().install_handlers(); }
}  // namespace

/// The endpoints are not destroyed; this process does not use them again.
void ForkRegistry::forget_all() noexcept {
  new (&lock_) Mutex;
  new (&entered_) IntrusiveList<Endpoint, ForkRegistry>;
  count_ = 0;
  new (&spare_) ForkHeld;
}

void ForkRegistry::enter(Endpoint& endpoint) {
  const std::lock_guard guard(lock_);
  if (spare_.room() <= count_) spare_.reserve(2 * count_ + 8);
  entered_.push_back(endpoint);
  ++count_;
}

void ForkRegistry::leave(Endpoint& endpoint) {
  const std::lock_guard guard(lock_);
  if (endpoint.ListNode<ForkRegistry>::is_linked() && count_ > 0) --count_;
  endpoint.ListNode<ForkRegistry>::unlink();
}

bool ForkRegistry::is_empty() {
  if (!is_known_process()) return true;
  const std::lock_guard guard(lock_);
  return entered_.empty();
}

std::vector<Ref> ForkRegistry::endpoints() {
  static_cast<void>(is_known_process());
  std::vector<Ref> out;
  const std::lock_guard guard(lock_);
  entered_.for_each([&](Endpoint& endpoint) {
    make_room(out);
    if (endpoint.try_add_ref()) out.emplace_back(&endpoint);
  });
  return out;
}

/// lock_ must be held.
void ForkRegistry::prepare_new() {
  entered_.for_each([this](Endpoint& endpoint) {
    if (endpoint.prepared_for_fork_) return;
    make_room(held_.endpoints);
    endpoint.prepared_for_fork_ = endpoint.try_add_ref();
    if (endpoint.prepared_for_fork_) held_.endpoints.emplace_back(&endpoint);
  });
}

bool ForkRegistry::has_new() {
  bool found = false;
  entered_.for_each([&](const Endpoint& endpoint) { found |= !endpoint.prepared_for_fork_; });
  return found;
}

/// Drops the references, without locks because that may destroy endpoints, and keeps the room for the next fork.
void ForkRegistry::give_back(ForkHeld held) {
  held.endpoints.clear();
  const std::lock_guard guard(lock_);
  if (held.room() > spare_.room()) std::swap(held, spare_);
}

void ForkRegistry::before_fork() {
  forking_.lock();
  forking_process_ = ::getpid();
  // Called first: a reader may wait for one of the locks below, and another thread for that reader.
  rcu_before_fork();
  lock_.lock();
  std::swap(held_, spare_);
  entered_.for_each([](Endpoint& endpoint) { endpoint.prepared_for_fork_ = false; });
  // Endpoints that are added meanwhile are prepared, too, for a limited number of rounds.
  constexpr int kMostRounds = 4;
  for (int round = 1;; ++round) {
    prepare_new();
    lock_.unlock();
    for (const Ref& endpoint : held_.endpoints) endpoint->add_fork_locks(held_.locks);
    held_.locks.lock();
    teardown_gate_.lock();
    lock_.lock();
    if (round == kMostRounds || !has_new()) break;
    teardown_gate_.unlock();
    held_.locks.unlock(false);
  }
  for (const Ref& endpoint : held_.endpoints) {
    if (endpoint->as_epoll_set() == nullptr) endpoint->values.share();
    endpoint->before_fork();
  }
}

/// Returns whether a thread sleeps in a call on the endpoint, or in poll(2) or select(2) with it.
bool ForkRegistry::is_slept_on(Endpoint& endpoint) {
  if (!endpoint.is_watched()) return false;
  const std::lock_guard guard(endpoint.watches_lock_);
  bool found = false;
  endpoint.watches_.for_each([&found](const Watch& watch) { found = found || watch.belongs_to_thread(); });
  return found;
}

void ForkRegistry::after_fork_in_parent() {
  for (const Ref& endpoint : held_.endpoints) endpoint->after_fork(Endpoint::ForkSide::parent);
  lock_.unlock();
  teardown_gate_.unlock();
  held_.locks.unlock(false);
  rcu_after_fork_in_parent();
  ForkHeld done = std::exchange(held_, {});
  forking_.unlock();
  // The child may now compete with a thread that sleeps, and take the bell that would wake it.
  for (const Ref& endpoint : done.endpoints) {
    if (is_slept_on(*endpoint)) endpoint->notify_watchers();
  }
  give_back(std::move(done));
}

void ForkRegistry::after_fork_in_child() {
  entered_.for_each([](Endpoint& endpoint) {
    endpoint.after_fork(endpoint.prepared_for_fork_ ? Endpoint::ForkSide::child : Endpoint::ForkSide::unprepared_child);
  });
  lock_.unlock();
  teardown_gate_.unlock();
  // Threads that the child does not have may have been waiting for it.
  new (&teardown_gate_) std::shared_mutex;
  held_.locks.unlock(true);
  rcu_after_fork_in_child();
  ForkHeld done = std::exchange(held_, {});
  forking_.unlock();
  give_back(std::move(done));
}

}  // namespace ringsock::runtime
