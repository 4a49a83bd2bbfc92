// Where the application's calls of the library begin and end, for the handlers of its signals.
#pragma once

#include <csignal>

#include "core/base/handlers_wait.h"

namespace ringsock::runtime {

/// Returns whether the calling thread is inside the library, so that a handler may not run: in a call that is counted,
/// or in a read-side section. May be called in signal handlers.
bool is_inside_library() noexcept;

/// Holds a signal that has come while the thread is inside the library, and makes the call end. Called by the handler
/// that the kernel runs, with the arguments of that handler.
/// @param restarts  whether the handler that waits has SA_RESTART
/// @return false when that is not possible; the signal's handler must then run at once. errno is kept.
bool hold_until_call_ends(int signal, siginfo_t* info, void* context, bool restarts) noexcept;

/// Lets the signals through that are due, so their handlers run here, and may leave by siglongjmp(3): nothing of the
/// library may be on the stack. Then runs the functions that are due (due_calls.h). Does nothing while the thread is
/// still inside of another call. errno is kept, but for ERESTART, which becomes EINTR when the call is not to be
/// repeated.
/// @param has_failed  whether the call has returned -1 and errno
/// @return whether the call must be made again: SA_RESTART asks for it, or it has ended early for such functions
bool run_what_is_due(bool has_failed);

/// Called where a call of the application ends, with nothing of the library left on the stack.
[[gnu::always_inline]] inline bool call_ends(bool has_failed) {
  if (!this_thread.handlers.is_due) [[likely]]
    return false;
  return run_what_is_due(has_failed);
}

/// Counts a call while it exists. The end of the call is another matter: call_ends().
class InsideLibrary {
 public:
  InsideLibrary() { ++this_thread.handlers.depth; }
  InsideLibrary(const InsideLibrary&) = delete;
  InsideLibrary& operator=(const InsideLibrary&) = delete;
  ~InsideLibrary() { --this_thread.handlers.depth; }
};

/// Carries out a call of the application, `body()`, which returns -1 and errno when it fails. Handlers wait for its
/// end. The call is made again when SA_RESTART asks for it.
template <class Body>
auto as_library_call(Body body) {
  for (;;) {
    const auto answer = [&] {
      const InsideLibrary inside;
      return body();
    }();
    if (!call_ends(answer == decltype(answer)(-1))) return answer;
  }
}

/// The same for a part of a call that waits for nothing. Handlers run when this object is destroyed.
class LibraryCall {
 public:
  LibraryCall() { ++this_thread.handlers.depth; }
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  /// A handler may throw, or end its thread.
  ~LibraryCall() noexcept(false) {
    --this_thread.handlers.depth;
    call_ends(false);
  }
};

/// While it exists, handlers run at once, as in the kernel's call that the library makes for the application here. The
/// caller holds no lock and no read-side section. A handler that leaves by siglongjmp(3) keeps the references that are
/// on the stack from being dropped.
class OutsideLibrary {
 public:
  OutsideLibrary();
  OutsideLibrary(const OutsideLibrary&) = delete;
  OutsideLibrary& operator=(const OutsideLibrary&) = delete;
  ~OutsideLibrary() { this_thread.handlers.depth = depth_; }

 private:
  const unsigned depth_;
};

}  // namespace ringsock::runtime
