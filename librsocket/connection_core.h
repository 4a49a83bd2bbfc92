// What the parts of a connection share.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

#include "core/base/biased_mutex.h"
#include "core/verbs/device.h"
#include "librsocket/connection_ends.h"
#include "librsocket/overflow_areas.h"
#include "librsocket/queue_settings.h"

namespace ringsock::rs {

/// A connection's device, its ends, its overflow areas, and the lock of what happens with its completions.
///
/// Threads: poll_lock serialises the processing of completions, and is the innermost lock. `settings` and `qp` do not
/// change after the connection has been made.
struct ConnectionCore {
  ConnectionCore(verbs::Device& its_device, const QueueSettings& its_settings)
      : device(its_device), settings(its_settings) {}

  [[nodiscard]] bool is_suspended() const { return suspended.load(std::memory_order_relaxed); }

  // One cache line, which each message uses.
  alignas(64) BiasedMutex poll_lock;
  ConnectionEnds ends;
  std::atomic<bool> suspended{false};  ///< Connection::suspend()
  verbs::Device& device;
  ibv_qp* qp = nullptr;  ///< QueuePairMemory's

  OverflowAreas overflow;
  QueueSettings settings;
};

}  // namespace ringsock::rs
