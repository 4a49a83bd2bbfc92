// SO_MAX_PACING_RATE: the forms of its value.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/base/result.h"

namespace ringsock::vma {

/// A rate as the application has set it. Linux's forms have 4 or 8 bytes and count bytes per second; VMA's, struct
/// vma_rate_limit_t, has 12 bytes and counts kbit/s.
struct PacingRate {
  static constexpr std::uint64_t kUnlimited = UINT64_MAX;
  std::uint64_t bytes_per_second = kUnlimited;  ///< 0: no limit, either, as for cards
  std::uint32_t burst_bytes = 0;                ///< 0: not stated
  std::uint16_t typical_bytes = 0;              ///< of a datagram; 0: not stated

  [[nodiscard]] bool is_limit() const { return bytes_per_second != 0 && bytes_per_second != kUnlimited; }
};

/// Errors: EINVAL too short, or a burst without a rate; EFAULT.
Result<PacingRate> parse_pacing_rate(const void* value, socklen_t length);
/// Writes the form for which there is room, as getsockopt(2). Errors: EFAULT.
Status write_pacing_rate(const PacingRate& rate, void* out, socklen_t* length);
/// Sets the rate of a kernel socket, in the kernel's form. Errors: those of setsockopt(2).
Status set_kernels_pacing_rate(int fd, const PacingRate& rate);

}  // namespace ringsock::vma
