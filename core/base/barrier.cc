#include "core/base/barrier.h"

#include "core/base/membarrier.h"
#include "core/base/this_thread.h"

namespace ringsock {

bool AsymmetricBarrier::register_process() { return register_for_barriers(BarrierScope::registered_processes); }

AsymmetricBarrier::Batch::Batch() { ++this_thread.open_batches; }

AsymmetricBarrier::Batch::~Batch() {
  if (--this_thread.open_batches > 0 || !this_thread.batch_owes) return;
  this_thread.batch_owes = false;
  heavy_now();
}

void AsymmetricBarrier::heavy() {
  if (this_thread.open_batches > 0) {
    this_thread.batch_owes = true;
    return;
  }
  heavy_now();
}

void AsymmetricBarrier::heavy_now() {
  full();
  // The call can only fail where registration fails as well; producers then use full().
  run_barrier(BarrierScope::registered_processes);
}

}  // namespace ringsock
