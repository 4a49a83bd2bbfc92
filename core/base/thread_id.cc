#include "core/base/thread_id.h"
#include "core/base/at_fork.h"

#include <unistd.h>

namespace ringsock {

__thread pid_t known_thread_id = 0;

std::uint64_t learn_thread_id() {
  // The forking thread is another one in the child.
  static const bool handler = (at_fork(ForkStep::thread_ids, nullptr, nullptr, [] { known_thread_id = 0; }), true);
  static_cast<void>(handler);
  known_thread_id = ::gettid();
  return static_cast<std::uint64_t>(known_thread_id);
}

}  // namespace ringsock
