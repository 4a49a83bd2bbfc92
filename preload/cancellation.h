// pthread_cancel(3) of the application's threads, where they call the library.
#pragma once

#include <atomic>

#include "core/base/process_state.h"

namespace ringsock::preload {

/// Returns whether something may have to be done about either kind of cancellation.
inline bool cancels_threads() { return process_parts.cancels_threads.load(std::memory_order_relaxed); }

/// Makes the calling thread's cancellation deferred, and ends the thread if it has been cancelled and the call is a
/// cancellation point. Returns whether it was asynchronous.
bool defer_cancellation(bool is_point);
/// Makes it asynchronous again, and acts on one that has come meanwhile. errno is kept.
void undefer_cancellation();

/// A call of the library's while it exists. A thread whose cancellation is asynchronous (pthread_setcanceltype(3)) is
/// not cancelled at any instruction of the library, but where the library sleeps for it (poll_until()), or at the end
/// of the call. Nothing of the library may be on the stack but this object. Costs one load.
class DeferredCancellation {
 public:
  DeferredCancellation() : DeferredCancellation(false) {}
  DeferredCancellation(const DeferredCancellation&) = delete;
  DeferredCancellation& operator=(const DeferredCancellation&) = delete;
  ~DeferredCancellation() noexcept(false) {
    if (was_asynchronous_) [[unlikely]]
      undefer_cancellation();
  }

 protected:
  explicit DeferredCancellation(bool is_point) {
    if (cancels_threads()) [[unlikely]]
      was_asynchronous_ = defer_cancellation(is_point);
  }

 private:
  bool was_asynchronous_ = false;
};

/// A call of the library's that POSIX makes a cancellation point (XSH, 2.9.5.2), also where it does not wait.
class CancellationPoint : public DeferredCancellation {
 public:
  CancellationPoint() : DeferredCancellation(true) {}
};

/// The slow path of at_cancellation_point(). It has no objects to destroy, so that a stack may be unwound from any of
/// its instructions.
template <auto Function, class... Arguments>
[[gnu::noinline, gnu::cold]] auto call_deferred(Arguments... arguments) {
  const bool was_asynchronous = defer_cancellation(true);
  const auto answer = Function(arguments...);
  if (was_asynchronous) undefer_cancellation();
  return answer;
}

/// Calls Function, which must not be inlined, as CancellationPoint does. A cancellation that is asynchronous may also
/// act just before the call and behind it, where the stack of a function with a CancellationPoint could not be unwound:
/// for the calls that such threads make most.
template <auto Function, class... Arguments>
[[gnu::always_inline]] inline auto at_cancellation_point(Arguments... arguments) {
  if (!cancels_threads()) [[likely]]
    return Function(arguments...);
  return call_deferred<Function>(arguments...);
}

}  // namespace ringsock::preload
