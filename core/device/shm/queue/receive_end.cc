#include "core/device/shm/queue/receive_end.h"

#include "core/base/barrier.h"

namespace ringsock::soft {

void ReceiveEnd::come() {
  consumer_.closed.store(1, std::memory_order_release);
  has_come_.store(true, std::memory_order_release);
  peer_.ring_if_waiting();
  AsymmetricBarrier::full();
  queue_.fire();
}

}  // namespace ringsock::soft
