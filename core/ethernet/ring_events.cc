#include "core/ethernet/ring_events.h"

namespace ringsock::ethernet {

namespace {
/// Asking a socket costs a system call.
constexpr unsigned kCallsPerLookElsewhere = 100;
}  // namespace

std::size_t RingEvents::collect(Ring& ring, std::span<SinkEvent> out) {
  const auto take = [](std::span<SinkEvent> room) {
    return [room](SinkTable& sinks) { return sinks.take_events(room); };
  };
  std::size_t count = ring.with_sinks(take(out));
  for (unsigned left = ring.most_batches(); left > 0 && count < out.size(); --left) {
    RingPoll call(out.subspan(count));
    if (ring.poll(&call) != Ring::Look::some) break;
    count += call.count;
  }
  const unsigned vain = count == 0 ? vain_.load(std::memory_order_relaxed) + 1 : 0;
  vain_.store(vain % kCallsPerLookElsewhere, std::memory_order_relaxed);
  if (vain < kCallsPerLookElsewhere) return count;
  return ring.with_sinks([&](SinkTable& sinks) { return sinks.look_elsewhere(out); });
}

}  // namespace ringsock::ethernet
