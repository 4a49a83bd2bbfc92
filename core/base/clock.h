// Clocks for the parts that do I/O. Engines never read a clock: callers pass them a Nanos.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ringsock {

using Nanos = std::chrono::nanoseconds;

/// Returns the time of CLOCK_MONOTONIC, in about 22 ns.
inline Nanos monotonic_now() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + Nanos(ts.tv_nsec);
}

/// Returns a counter that grows with time, by about 2^30 to 2^32 a second. Cheaper than reading the clock. 0 on
/// machines without one.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

/// Returns a time stamp that orders events of processes of this host. Its unit is about 12 ns, and it is as exact as
/// the tick counters of different CPUs agree. Never 0, except on machines without ticks. Differences are valid for
/// about 25 s.
inline std::uint32_t order_stamp() {
#if defined(__x86_64__)
  const auto stamp = static_cast<std::uint32_t>(ticks() >> 5);
  return stamp != 0 ? stamp : 1;
#else
  return 0;
#endif
}

/// Tells the CPU that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

inline timespec to_timespec(Nanos duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace ringsock
