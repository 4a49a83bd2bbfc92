// fork(2) in a process whose other threads are using endpoints.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <shared_mutex>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/biased_mutex.h"
#include "core/base/intrusive_list.h"
#include "core/base/lock_until.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

class ForkLocks;

/// Has biased locks that exist, and change, only under its outer lock.
class LocksWithin {
 public:
  /// Adds those that there are now. The outer locks are held.
  virtual void add_locks_within(ForkLocks& locks) = 0;

 protected:
  ~LocksWithin() = default;
};

/// The locks that are held across fork(2), so that the child finds every object consistent, and no lock held by a
/// thread that it does not have. Kinds are locked in this order:
///
/// - outer locks, which may nest in any order: taken as std::lock() does. Those within are added then;
/// - biased locks, level by level, with one membarrier(2) for each level;
/// - inner locks, as the outer ones.
class ForkLocks {
 public:
  static constexpr std::size_t kLevels = 3;

  /// Makes room for the locks of so many endpoints: as many as any endpoint has.
  void reserve(std::size_t endpoints);
  void add_outer(Mutex& mutex) { outer_.push_back(&mutex); }
  void add_within(LocksWithin& owner) { within_.push_back(&owner); }
  void add_biased(std::size_t level, BiasedMutex& mutex) { biased_[level].push_back(&mutex); }
  void add_inner(Mutex& mutex) { inner_.push_back(&mutex); }

  void lock();
  /// Unlocks and forgets all locks.
  void unlock(bool in_child);

 private:
  std::vector<Mutex*> outer_;
  std::vector<LocksWithin*> within_;
  std::array<std::vector<BiasedMutex*>, kLevels> biased_;
  std::vector<Mutex*> inner_;
};

/// What a fork holds.
struct ForkHeld {
  void reserve(std::size_t count);
  [[nodiscard]] std::size_t room() const { return endpoints.capacity(); }

  std::vector<Ref> endpoints;
  ForkLocks locks;
};

/// The endpoints that have handlers for fork(2) (Endpoint::add_fork_locks() and so on). The registry's own handlers
/// enclose those of everything that is used under the endpoints' locks.
class ForkRegistry {
 public:
  static constexpr ProcessPart kPart = ProcessPart::fork_registry;
  /// Installs the handlers of the process's registry. Call it once.
  static void install_handlers();
  /// Call enter() at the end of an endpoint's constructor, leave() at the beginning of its destructor. enter() makes
  /// room for the endpoint in forks, which have no way to tell that there is no memory. Errors: std::bad_alloc.
  void enter(Endpoint& endpoint);
  void leave(Endpoint& endpoint);

  /// Always true in a child that was made without our handlers.
  [[nodiscard]] bool is_empty();
  /// Visits the entered endpoints. Returns false when the list stays locked, which may happen in a signal handler.
  template <class Visit>
  bool try_for_each(Visit visit) {
    static_cast<void>(is_known_process());
    constexpr Nanos kPatience = std::chrono::milliseconds(50);
    const auto guard = lock_until(lock_, monotonic_now() + kPatience);
    if (guard) entered_.for_each(visit);
    return guard.owns_lock();
  }

  /// Returns all endpoints that are entered now.
  std::vector<Ref> endpoints();

  /// Returns the pid of the forking process to before_fork() of endpoints, which saves a system call for each.
  [[nodiscard]] pid_t forking_process() const { return forking_process_; }

  /// Returns the endpoints that the child gets. Valid between the handlers before and after a fork.
  [[nodiscard]] const std::vector<Ref>& copied() const { return held_.endpoints; }

  /// Returns a lock that is held shared while an endpoint is torn down, so that fork(2) waits for that. Lock it without
  /// holding locks of endpoints.
  std::shared_mutex& teardown_gate() { return teardown_gate_; }

 private:
  void forget_all() noexcept;
  static bool is_slept_on(Endpoint& endpoint);
  void give_back(ForkHeld held);
  void prepare_new();
  bool has_new();
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  Mutex forking_;  ///< one fork at a time; held across it
  std::shared_mutex teardown_gate_;
  Mutex lock_;  ///< guards these; a leaf lock
  IntrusiveList<Endpoint, ForkRegistry> entered_;
  std::size_t count_ = 0;  ///< of entered_
  ForkHeld spare_;         ///< empty, with room for all entered endpoints; while a fork holds it, for the new ones
  // Valid between before_fork() and after_fork_...():
  pid_t forking_process_ = 0;
  ForkHeld held_;
};

/// The registry of this process. It is never destroyed.
ForkRegistry& fork_registry();

}  // namespace ringsock::runtime
