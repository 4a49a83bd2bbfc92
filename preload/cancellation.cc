#include "preload/cancellation.h"

#include <pthread.h>

#include "preload/route.h"

namespace ringsock::preload {

bool defer_cancellation(bool is_point) {
  int before = PTHREAD_CANCEL_DEFERRED;
  real.pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
  if (is_point) ::pthread_testcancel();
  return before == PTHREAD_CANCEL_ASYNCHRONOUS;
}

void undefer_cancellation() {
  const int error = errno;
  real.pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
  errno = error;
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int pthread_cancel(pthread_t thread) {
  ringsock::process_parts.cancels_threads.store(true);
  return real.pthread_cancel(thread);
}

RS_INTERCEPT int pthread_setcanceltype(int type, int* before) {
  if (type == PTHREAD_CANCEL_ASYNCHRONOUS) ringsock::process_parts.cancels_threads.store(true);
  return real.pthread_setcanceltype(type, before);
}
