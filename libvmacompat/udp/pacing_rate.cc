#include "libvmacompat/udp/pacing_rate.h"

#include <mellanox/vma_extra.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/base/user_memory.h"

namespace ringsock::vma {

namespace {

constexpr std::uint64_t kBytesPerKbit = 125;
constexpr std::uint32_t kUnlimitedWord = UINT32_MAX;

std::uint32_t as_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kUnlimitedWord));
}

Result<PacingRate> parse_vmas(const void* value) {
  vma_rate_limit_t limit;
  std::memcpy(&limit, value, sizeof limit);
  if (limit.rate == 0 && (limit.max_burst_sz != 0 || limit.typical_pkt_sz != 0))
    return Error{EINVAL, "SO_MAX_PACING_RATE: a burst without a rate"};
  return PacingRate{.bytes_per_second = limit.rate * kBytesPerKbit,
                    .burst_bytes = limit.max_burst_sz,
                    .typical_bytes = limit.typical_pkt_sz};
}

vma_rate_limit_t as_vmas(const PacingRate& rate) {
  vma_rate_limit_t out{};
  if (!rate.is_limit()) return out;
  out.rate = as_word((rate.bytes_per_second + kBytesPerKbit / 2) / kBytesPerKbit);
  out.max_burst_sz = rate.burst_bytes;
  out.typical_pkt_sz = rate.typical_bytes;
  return out;
}

template <class Value>
Status write(const Value& value, void* out, socklen_t* length) {
  const auto bytes = std::min<socklen_t>(*length, sizeof value);
  if (!is_writable(out, bytes)) return Error{EFAULT, "SO_MAX_PACING_RATE"};
  std::memcpy(out, &value, bytes);
  *length = bytes;
  return ok();
}

}  // namespace

Result<PacingRate> parse_pacing_rate(const void* value, socklen_t length) {
  std::uint32_t word = 0;
  std::uint64_t both = 0;
  if (length < sizeof word) return Error{EINVAL, "SO_MAX_PACING_RATE: length"};
  if (value == nullptr || !is_readable(value, std::min<std::size_t>(length, sizeof(vma_rate_limit_t))))
    return Error{EFAULT, "SO_MAX_PACING_RATE"};
  if (length == sizeof(vma_rate_limit_t)) return parse_vmas(value);
  if (length >= sizeof both) {
    std::memcpy(&both, value, sizeof both);
    return PacingRate{.bytes_per_second = both};
  }
  std::memcpy(&word, value, sizeof word);
  return PacingRate{.bytes_per_second = word == kUnlimitedWord ? PacingRate::kUnlimited : word};
}

Status write_pacing_rate(const PacingRate& rate, void* out, socklen_t* length) {
  if (*length == sizeof(vma_rate_limit_t)) return write(as_vmas(rate), out, length);
  if (*length >= sizeof rate.bytes_per_second) return write(rate.bytes_per_second, out, length);
  return write(as_word(rate.bytes_per_second), out, length);
}

Status set_kernels_pacing_rate(int fd, const PacingRate& rate) {
  const std::uint64_t both = rate.is_limit() ? rate.bytes_per_second : PacingRate::kUnlimited;
  const std::uint32_t word = as_word(both);
  // Linux before 5.0 knows 4 bytes only.
  const bool is_short = both == PacingRate::kUnlimited || both < word || both == word;
  const int set = is_short ? ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &word, sizeof word)
                           : ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &both, sizeof both);
  return set == 0 ? ok() : Status(Error::last("SO_MAX_PACING_RATE"));
}

}  // namespace ringsock::vma
