// Threads that have their own say in whether their sockets may use rings: vma_api_t::thread_offload().
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <optional>
#include <unordered_map>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace ringsock::vma {

/// The settings of threads, by pthread_t. A thread that gets the number of one that has ended gets its setting, too, as
/// in VMA. Threads: any.
class ThreadOffload {
 public:
  /// Decides for sockets that `thread` makes from now on. Errors: ENOMEM too many threads.
  Status set(pthread_t thread, bool on);
  /// Returns the calling thread's setting, if it has one. Costs a load while no thread has one.
  [[nodiscard]] std::optional<bool> of_caller();
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  /// As many as a process may have threads.
  static constexpr std::size_t kMostThreads = 32768;
  std::atomic<bool> is_used_{false};
  Mutex lock_;
  std::unordered_map<pthread_t, bool> threads_;
};

}  // namespace ringsock::vma
