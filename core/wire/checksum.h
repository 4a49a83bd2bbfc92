// The Internet checksum. Sources: RFC 1071 (the sum), RFC 1624 (the update for one changed word).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "core/wire/big_endian.h"

namespace ringsock::wire {

/// The one's complement sum of 16-bit words, added piece by piece. Pieces are added in the order of the packet, and may
/// have any length. A piece of odd length is padded only if it is the last.
class InternetSum {
 public:
  constexpr InternetSum() = default;

  InternetSum& add(std::span<const std::byte> bytes);
  /// The same for headers, whose length is known at compile time. Must not follow a piece of odd length.
  template <std::size_t kBytes>
  InternetSum& add_fixed(const std::byte* bytes) {
    static_assert(kBytes % sizeof(std::uint32_t) == 0);
    const auto word = [bytes](std::size_t number) {
      std::uint32_t out;
      std::memcpy(&out, bytes + number * sizeof out, sizeof out);
      return out;
    };
    [&]<std::size_t... kNumber>(std::index_sequence<kNumber...>) { ((sum_ += word(kNumber)), ...); }
    (std::make_index_sequence<kBytes / sizeof(std::uint32_t)>());
    return *this;
  }
  /// Adds one word. The pieces before it must have an even length in all.
  constexpr InternetSum& add(Be16 word) {
    sum_ += std::bit_cast<std::uint16_t>(word);
    return *this;
  }

  /// Returns the sum in 16 bits, in network order. A sender that leaves the checksum to the device writes the sum of
  /// the pseudo header into the checksum field (CHECKSUM_PARTIAL).
  [[nodiscard]] constexpr Be16 folded() const { return std::bit_cast<Be16>(fold(sum_)); }
  /// Returns the complement of the sum, for a checksum field that was zero when the sum was computed.
  [[nodiscard]] constexpr Be16 checksum() const { return std::bit_cast<Be16>(static_cast<std::uint16_t>(~fold(sum_))); }
  /// Returns whether the checksum is right, after everything including the checksum field has been added.
  [[nodiscard]] constexpr bool is_valid() const { return fold(sum_) == 0xffff; }

  static constexpr std::uint16_t fold(std::uint64_t sum) {
    // Adds both halves in the upper half, which receives the carry of the lower half.
    const auto half = static_cast<std::uint32_t>((sum + std::rotl(sum, 32)) >> 32);
    return static_cast<std::uint16_t>((half + std::rotl(half, 16)) >> 16);
  }

 private:
  // Words are added in the byte order of this host; the sum of byte-swapped words is the byte-swapped sum (RFC 1071, 2
  // (B)).
  std::uint64_t sum_ = 0;
  bool odd_ = false;  ///< the number of bytes so far is odd
};

/// Returns the checksum after the change of one 16-bit word that it covers (RFC 1624, equation 3). Not for a UDP
/// checksum of zero, which means no checksum.
constexpr Be16 update_checksum(Be16 checksum, Be16 old_word, Be16 new_word) {
  const auto complement = [](Be16 word) { return static_cast<std::uint16_t>(~std::bit_cast<std::uint16_t>(word)); };
  const std::uint64_t sum =
      std::uint64_t{complement(checksum)} + complement(old_word) + std::bit_cast<std::uint16_t>(new_word);
  return std::bit_cast<Be16>(static_cast<std::uint16_t>(~InternetSum::fold(sum)));
}
/// The same for a 32-bit word at an even offset, e.g. an address.
constexpr Be16 update_checksum(Be16 checksum, Be32 old_word, Be32 new_word) {
  const auto before = std::bit_cast<std::array<Be16, 2>>(old_word);
  const auto after = std::bit_cast<std::array<Be16, 2>>(new_word);
  return update_checksum(update_checksum(checksum, before[0], after[0]), before[1], after[1]);
}

}  // namespace ringsock::wire
