#include "core/device/packet/steering/frames_under_way.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

bool FramesUnderWay::wait_for(unsigned ring, std::chrono::nanoseconds limit) {
  const Nanos end = monotonic_now() + limit;
  while (any_for(ring)) {
    if (monotonic_now() >= end) return false;
    ::sched_yield();
  }
  return true;
}

/// Returns whether a CPU decides whether this ring takes a frame, or has decided so and puts the frame there.
bool FramesUnderWay::any_for(unsigned ring) {
  if (!taken_) return false;
  if (notes_.empty()) notes_.resize(static_cast<std::size_t>(std::max(libbpf_num_possible_cpus(), 0)));
  const std::uint32_t only = 0;
  if (notes_.empty() || bpf_map_lookup_elem(taken_.get(), &only, notes_.data()) != 0) return false;
  const unsigned bit = ring - 1;
  const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
  return std::ranges::any_of(
      notes_, [&](const taken_by& cpu) { return ((cpu.rings[bit / 64] | cpu.copies[bit / 64]) & mask) != 0; });
}

}  // namespace ringsock::soft
