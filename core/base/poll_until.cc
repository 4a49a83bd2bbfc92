#include "core/base/poll_until.h"

#include <algorithm>

#include "core/base/libc_calls.h"

namespace ringsock {

Result<int> poll_until(std::span<pollfd> fds, Nanos deadline, const sigset_t* mask) {
  const bool for_ever = deadline == Nanos::max();
  const timespec left = to_timespec(for_ever ? deadline : std::max(deadline - monotonic_now(), Nanos::zero()));
  // ::ppoll() would be no cancellation point here (libc_wraps.cc).
  const int ready = libc_calls.ppoll(fds.data(), fds.size(), for_ever ? nullptr : &left, mask);
  if (ready < 0) return Error::last("ppoll");
  return ready;
}

}  // namespace ringsock
