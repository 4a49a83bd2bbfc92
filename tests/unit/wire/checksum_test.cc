#include "core/wire/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ringsock::wire {
namespace {

std::vector<std::byte> some_bytes(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(count);
  for (auto& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

/// The definition: big-endian words, an odd byte padded with zero, carries added in.
std::uint16_t checksum_by_definition(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += std::to_integer<std::uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

TEST(InternetSum, HasTheResultOfRfc1071sExample) {
  const std::array<std::uint8_t, 8> bytes{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  const InternetSum sum = InternetSum().add(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(sum.folded(), Be16(0xddf2));
  EXPECT_EQ(sum.checksum(), Be16(0x220d));
}

TEST(InternetSum, IsThatOfTheDefinitionForEveryLengthAndAlignment) {
  const auto bytes = some_bytes(600);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t length = 0; begin + length <= bytes.size(); ++length) {
      const auto piece = std::span(bytes).subspan(begin, length);
      ASSERT_EQ(InternetSum().add(piece).checksum().host(), checksum_by_definition(piece)) << begin << "+" << length;
    }
  }
}

TEST(InternetSum, CarriesWithoutLossInTheLargestPacketOfAllOnes) {
  const std::vector<std::byte> ones(65535, std::byte{0xff});
  EXPECT_EQ(InternetSum().add(ones).checksum().host(), checksum_by_definition(ones));
  const auto bytes = some_bytes(65535);
  EXPECT_EQ(InternetSum().add(bytes).checksum().host(), checksum_by_definition(bytes));
}

TEST(InternetSum, OfPiecesIsThatOfTheWholeWhateverTheirLengths) {
  const auto bytes = some_bytes(1000);
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    InternetSum sum;
    for (auto rest = std::span(bytes); !rest.empty();) {
      const std::size_t length = std::min<std::size_t>(rest.size(), random() % 150);
      sum.add(rest.first(length));
      rest = rest.subspan(length);
    }
    ASSERT_EQ(sum.checksum().host(), checksum_by_definition(bytes));
  }
}

TEST(InternetSum, OverThePacketWithItsChecksumIsValid) {
  auto bytes = some_bytes(64);
  bytes[10] = bytes[11] = std::byte{0};
  const Be16 checksum = InternetSum().add(bytes).checksum();
  std::memcpy(&bytes[10], &checksum, sizeof checksum);
  EXPECT_TRUE(InternetSum().add(bytes).is_valid());
  bytes[20] ^= std::byte{1};
  EXPECT_FALSE(InternetSum().add(bytes).is_valid());
}

TEST(UpdateChecksum, HasTheResultOfRfc1624sExample) {
  // The case that the older equation of RFC 1141 gets wrong.
  EXPECT_EQ(update_checksum(Be16(0xdd2f), Be16(0x5555), Be16(0x3285)), Be16(0x0000));
}

TEST(UpdateChecksum, IsTheChecksumOfTheChangedPacket) {
  auto bytes = some_bytes(40);
  std::mt19937 random(3);
  Be16 checksum = InternetSum().add(bytes).checksum();
  for (int round = 0; round < 1000; ++round) {
    const std::size_t at = random() % 18 * 2;
    Be32 before;
    std::memcpy(&before, &bytes[at], sizeof before);
    const Be32 after{static_cast<std::uint32_t>(random())};
    std::memcpy(&bytes[at], &after, sizeof after);
    checksum = update_checksum(checksum, before, after);
    ASSERT_EQ(checksum, InternetSum().add(bytes).checksum());
  }
}

}  // namespace
}  // namespace ringsock::wire
