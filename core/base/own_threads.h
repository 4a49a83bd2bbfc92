// Telling the library's threads from the application's.
#pragma once

#include <atomic>

namespace ringsock {

/// Lives on the stack of a thread that the library runs for itself, which touches no memory of the application but what
/// the application has handed over.
class OwnThread {
 public:
  OwnThread() { running.fetch_add(1, std::memory_order_relaxed); }
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
  ~OwnThread() { running.fetch_sub(1, std::memory_order_relaxed); }

  /// Never more than there are.
  static int count() { return running.load(std::memory_order_relaxed); }
  /// fork(2) copies only the thread that calls it.
  static void forget_after_fork() { running.store(0, std::memory_order_relaxed); }

 private:
  static inline std::atomic<int> running{0};
};

/// Whether the application has threads besides the calling one; yes, where that cannot be told. Allocates no memory.
bool has_other_threads();

}  // namespace ringsock
