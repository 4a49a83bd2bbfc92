#include "core/wire/checksum.h"

#include <cstring>

namespace ringsock::wire {

namespace {

/// Two 64-bit lanes, which fit into a register of every 64-bit machine.
using Lanes = std::uint64_t __attribute__((vector_size(16)));
constexpr std::size_t kBlock = 4 * sizeof(Lanes);
constexpr std::uint64_t kLow = 0xffffffff;

template <class Word>
Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// Returns the sum of whole blocks. 32-bit words are added in 64-bit lanes, which overflow only after 32 GiB.
std::uint64_t sum_blocks(const std::byte* from, std::size_t blocks) {
  Lanes even{}, odd{};
  for (; blocks != 0; --blocks, from += kBlock) {
    const Lanes a = load<Lanes>(from), b = load<Lanes>(from + sizeof(Lanes));
    const Lanes c = load<Lanes>(from + 2 * sizeof(Lanes)), d = load<Lanes>(from + 3 * sizeof(Lanes));
    even += ((a & kLow) + (b & kLow)) + ((c & kLow) + (d & kLow));
    odd += ((a >> 32) + (b >> 32)) + ((c >> 32) + (d >> 32));
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : {even[0], even[1], odd[0], odd[1]}) sum += InternetSum::fold(lane);
  return sum;
}

std::uint16_t sum_of(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t sum = 0;
  if (left >= 2 * kBlock) {
    sum = sum_blocks(at, left / kBlock);
    at += left / kBlock * kBlock;
    left %= kBlock;
  }
  for (; left >= 8; left -= 8, at += 8) {
    const auto word = load<std::uint64_t>(at);
    sum += (word & kLow) + (word >> 32);
  }
  if (left >= 4) {
    sum += load<std::uint32_t>(at);
    left -= 4, at += 4;
  }
  if (left >= 2) {
    sum += load<std::uint16_t>(at);
    left -= 2, at += 2;
  }
  if (left != 0) sum += std::bit_cast<std::uint16_t>(std::array{*at, std::byte{0}});
  return InternetSum::fold(sum);
}

}  // namespace

InternetSum& InternetSum::add(std::span<const std::byte> bytes) {
  const std::uint16_t sum = sum_of(bytes);
  sum_ += odd_ ? swap_bytes(sum) : sum;
  odd_ ^= (bytes.size() & 1) != 0;
  return *this;
}

}  // namespace ringsock::wire
