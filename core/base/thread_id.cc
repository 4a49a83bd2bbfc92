#include "core/base/thread_id.h"
#include "core/base/at_fork.h"

#include <unistd.h>

namespace ringsock {

thread_local constinit ThisThread this_thread;

std::uint64_t learn_thread_id() {
  // The forking thread is another one in the child.
  static const bool handler = (at_fork(ForkStep::thread_ids, nullptr, nullptr, [] { this_thread.id = 0; }), true);
  static_cast<void>(handler);
  this_thread.id = ::gettid();
  return static_cast<std::uint64_t>(this_thread.id);
}

}  // namespace ringsock
