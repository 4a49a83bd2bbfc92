// Functions of the application that a call of the library finds due, and that run where the call ends.
#pragma once

#include <cerrno>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/this_thread.h"

namespace ringsock {

namespace runtime {
class Endpoint;
}  // namespace runtime

/// A part of an endpoint that calls functions of the application. These may use any socket, close their own, throw, or
/// leave by longjmp(3), so nothing of the library may be on the stack: they run as handlers of signals do that have
/// waited for the end of a call (core/runtime/library_call.h). A call that finds such functions due and nothing to
/// return fails with EINTR or ERESTART, and is made again after them, or with EAGAIN, and is made again if they leave
/// something.
class DueCall {
 public:
  /// Called by the thread that has found it due. Locks: none. May throw.
  virtual void run() = 0;
  /// The endpoint is referenced until run() has returned.
  virtual runtime::Endpoint& endpoint() noexcept = 0;

 protected:
  ~DueCall() = default;
};

namespace runtime {

/// Has `call` run where the thread's call of the library ends. Returns false for a thread that is in no such call. Once
/// kMost are due, further ones have to be found when the call is made again.
bool note_due(DueCall& call);

/// Returns whether functions are due in this thread.
inline bool has_due_calls() { return this_thread.due.count != 0; }
/// Returns whether a call that does not wait should go on after these functions. It does so once: otherwise it would
/// never end while there is always something for them.
inline bool goes_on_after_due_calls() { return has_due_calls() && !this_thread.due.is_resumed; }
/// Called last by run(): the functions have left something, so a call that has failed with EAGAIN is made again, once.
inline void note_left_for_call() { this_thread.due.has_left = true; }
/// The answer of a wait that has found nothing else.
inline constexpr Error kForDueCalls{EINTR, "wait: functions of the application are due"};
/// The call that ends for them waits until `deadline`.
inline void keep_deadline(Nanos deadline) {
  this_thread.due.has_deadline = deadline != Nanos::max();
  this_thread.due.deadline = deadline.count();
}

/// Runs all that are due. Returns whether they have left something. errno is kept.
bool run_due_calls();

}  // namespace runtime
}  // namespace ringsock
