// Holds off pthread_cancel(3) on this thread.
#pragma once

#include <pthread.h>

namespace ringsock {

/// While this object exists, a cancellation of this thread stays pending. Deferred cancellation unwinds the stack,
/// which must not go through destructors and noexcept functions; either may be on the stack of a libc call that the
/// library makes for itself (libc_wraps.cc). A pending cancellation takes effect where the library sleeps for the
/// application (poll_until()).
class NoCancellation {
 public:
  NoCancellation() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() { ::pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace ringsock
