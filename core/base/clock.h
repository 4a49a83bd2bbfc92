// Time for the parts that do I/O. Engines never read a clock: they are handed a Nanos.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ringsock {

using Nanos = std::chrono::nanoseconds;

/// CLOCK_MONOTONIC, about 22 ns a call.
inline Nanos monotonic_now() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + Nanos(ts.tv_nsec);
}

/// Something that grows with time, about 2^30 to 2^32 a second, for less than a call of the clock; 0 where there is
/// nothing such.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
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

}  // namespace ringsock
