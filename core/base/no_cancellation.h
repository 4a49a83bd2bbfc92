// No pthread_cancel(3) on this thread for a while.
#pragma once

#include <pthread.h>

namespace ringsock {

/// While it lives a cancellation of this thread stays pending. Deferred cancellation acts by unwinding the stack, which
/// may not go through destructors and noexcept functions: those may be on the stack of any call of libc that we make
/// for ourselves (libc_wraps.cc). It acts where we sleep for the application (runtime::poll_until()).
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
