#include "core/base/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ringsock {

namespace {
long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }
}  // namespace

bool AsymmetricBarrier::register_process() {
  // Registration belongs to the address space: a forked child inherits it, exec drops it with this variable.
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return registered;
}

void AsymmetricBarrier::heavy() {
  full();
  // A failure can only mean that nobody could register either: producers then use full().
  if (register_process()) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace ringsock
