// fork(2) in a process whose other threads are using endpoints at that moment.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <shared_mutex>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/biased_mutex.h"
#include "core/base/intrusive_list.h"
#include "core/base/mutex.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// The locks that are held across fork(2), so that the child finds every object whole, and no lock held by a thread
/// that it does not have. Each kind is taken before the next one:
///
/// - outer ones, which may nest in any order: taken as std::lock() does;
/// - biased ones, level by level: one membarrier(2) for all of a level;
/// - inner ones, as the outer ones.
class ForkLocks {
 public:
  static constexpr std::size_t kLevels = 3;

  void add_outer(Mutex& mutex) { outer_.push_back(&mutex); }
  void add_biased(std::size_t level, BiasedMutex& mutex) { biased_[level].push_back(&mutex); }
  void add_inner(Mutex& mutex) { inner_.push_back(&mutex); }

  void lock();
  /// Forgets them, too.
  void unlock(bool in_child);

 private:
  std::vector<Mutex*> outer_;
  std::array<std::vector<BiasedMutex*>, kLevels> biased_;
  std::vector<Mutex*> inner_;
};

/// The endpoints that have something to do around fork(2) (Endpoint::add_fork_locks() and so on). Its handlers go
/// around those of everything that is used under the endpoints' locks.
class ForkRegistry {
 public:
  /// Once, of the process's own.
  static void install_handlers();
  /// At the end of a constructor, and at the beginning of the destructor.
  void enter(Endpoint& endpoint);
  void leave(Endpoint& endpoint);

  /// Nothing is in a child that was made without our handlers.
  [[nodiscard]] bool is_empty();
  /// Visits what is entered now; false when the list is busy, as it may be for a signal handler.
  template <class Visit>
  bool try_for_each(Visit visit) {
    static_cast<void>(is_known_process());
    if (!lock_.try_lock()) return false;
    entered_.for_each(visit);
    lock_.unlock();
    return true;
  }

  /// All that are entered now.
  std::vector<Ref> endpoints();

  /// Of the process that forks, in before_fork() of an endpoint: a system call for each would add up.
  [[nodiscard]] pid_t forking_process() const { return forking_process_; }

  /// Between the handlers that run before and after a fork: what the child gets.
  [[nodiscard]] const std::vector<Ref>& copied() const { return prepared_; }

  /// Shared while an endpoint is taken apart: fork(2) waits for that. Without locks of endpoints.
  std::shared_mutex& teardown_gate() { return teardown_gate_; }

 private:
  void forget_all() noexcept;
  void prepare_new();
  bool has_new();
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  Mutex forking_;  ///< one fork at a time; held across it
  std::shared_mutex teardown_gate_;
  Mutex lock_;  ///< of entered_; a leaf
  IntrusiveList<Endpoint, ForkRegistry> entered_;
  // Between before_fork() and after_fork_...():
  pid_t forking_process_ = 0;
  ForkLocks locks_;
  std::vector<Ref> prepared_;
};

/// The process's own. Never destroyed.
ForkRegistry& fork_registry();

}  // namespace ringsock::runtime
