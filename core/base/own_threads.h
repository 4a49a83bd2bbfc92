// Telling the library's threads from the application's.
#pragma once

namespace ringsock {

/// Marks a thread that the library runs for itself, on whose stack it lives. Such a thread accesses no memory of the
/// application except what the application has handed over.
class OwnThread {
 public:
  OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
  ~OwnThread();

  /// Returns the number of such threads, or less while one starts or ends.
  static int count();
  /// fork(2) copies only the thread that calls it.
  static void forget_after_fork();
};

/// Returns whether the application has threads besides the calling one; true where that is unknown. Allocates no
/// memory.
bool has_other_threads();

/// Returns whether the main thread has ended, which leaves a zombie, and only the library's threads are left. False
/// where that is unknown. For those threads. Allocates no memory.
bool are_only_own_threads_left();

}  // namespace ringsock
