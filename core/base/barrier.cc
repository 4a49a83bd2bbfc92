#include "core/base/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/rare_calls.h"

namespace ringsock {

namespace {
long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }
}  // namespace

bool AsymmetricBarrier::register_process() {
  // Registration belongs to the address space: a forked child inherits it, exec drops it with this variable.
  static const bool registered =
      is_permitted(RareCall::membarrier_global) && membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return registered;
}

namespace {
constinit thread_local unsigned open_batches = 0;
constinit thread_local bool batch_owes = false;
}  // namespace

AsymmetricBarrier::Batch::Batch() { ++open_batches; }

AsymmetricBarrier::Batch::~Batch() {
  if (--open_batches > 0 || !batch_owes) return;
  batch_owes = false;
  heavy_now();
}

void AsymmetricBarrier::heavy() {
  if (open_batches > 0) {
    batch_owes = true;
    return;
  }
  heavy_now();
}

void AsymmetricBarrier::heavy_now() {
  full();
  // The call can only fail where registration fails as well; producers then use full().
  if (register_process() && is_permitted(RareCall::membarrier_global)) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace ringsock
