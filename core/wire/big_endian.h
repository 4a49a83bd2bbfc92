// Byte order as a type.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace ringsock::wire {

/// The value with its bytes reversed.
template <std::unsigned_integral T>
constexpr T swap_bytes(T value) {
  if constexpr (sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

/// An unsigned integer as it is stored in a packet: most significant byte first, alignment 1. There is no implicit
/// conversion, so a missing or a second swap does not compile.
template <std::unsigned_integral T>
class BigEndian {
 public:
  constexpr BigEndian() = default;
  constexpr explicit BigEndian(T host) : bytes_(std::bit_cast<Bytes>(swap_if_little(host))) {}
  [[nodiscard]] constexpr T host() const { return swap_if_little(std::bit_cast<T>(bytes_)); }
  bool operator==(const BigEndian&) const = default;

 private:
  using Bytes = std::array<std::uint8_t, sizeof(T)>;
  static constexpr T swap_if_little(T value) {
    return std::endian::native == std::endian::little ? swap_bytes(value) : value;
  }
  Bytes bytes_{};
};

using Be16 = BigEndian<std::uint16_t>;
using Be32 = BigEndian<std::uint32_t>;
using Be64 = BigEndian<std::uint64_t>;

}  // namespace ringsock::wire
