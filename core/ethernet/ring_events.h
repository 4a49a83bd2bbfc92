// What a program learns that polls a ring instead of the ring's sockets.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

#include "core/ethernet/packet_sink.h"
#include "core/ethernet/ring.h"

namespace ringsock::ethernet {

/// Polls one ring. Threads: any; meant for one, while others may use the ring's sockets.
class RingEvents {
 public:
  /// Takes packets and returns the number of events, oldest first. After many calls that have found nothing, the
  /// sockets are asked for events of other kinds. Does not wait.
  std::size_t collect(Ring& ring, std::span<SinkEvent> out);

 private:
  std::atomic<unsigned> vain_{0};  ///< calls that have found nothing, in a row
};

}  // namespace ringsock::ethernet
